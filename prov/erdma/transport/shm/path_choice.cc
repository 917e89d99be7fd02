#include "transport/shm/path_choice.h"

#include <algorithm>
#include <bit>

namespace erdma::transport::shm {
size_t PathChoice::class_of(size_t length) noexcept {
  const size_t doublings = size_t(std::bit_width((std::max(length, size_t(1)) - 1) / kSmallest));
  return std::min(doublings, kClasses - 1);
}

// Streaming stores on the receiving side leave the data outside the caches, which never helps its
// consumer. So that path competes only where the data would not fit into them anyway.
bool PathChoice::offered(Path path, size_t size_class, Open open) const noexcept {
  const bool huge = size_class == kClasses - 1;
  const bool streams = x_streaming != StreamingPolicy::never;
  switch (path) {
    case Path::cma:
      return open.cma;
    case Path::copy:
      return open.copy && x_streaming != StreamingPolicy::always;
    case Path::copy_streaming_in:
      return open.copy && streams && !(huge && x_streaming == StreamingPolicy::always);
    case Path::copy_streaming_both:
      return open.copy && streams && huge;
  }
  return false;
}

Path PathChoice::choose(size_t length, Open open) noexcept {
  if (open.cma && length <= never_copied(open.backed) && x_paths != PathPolicy::copy)
    return Path::cma;
  if (open.cma && open.copy && x_cma_until > 0) {
    --x_cma_until;
    open.copy = false;
  }
  if (open.cma && open.copy && x_paths != PathPolicy::measure) {
    open.cma = x_paths == PathPolicy::cma;
    open.copy = x_paths == PathPolicy::copy;
  }
  const size_t size_class = class_of(length);
  Path paths[kPaths];
  size_t count = 0;
  for (size_t i = 0; i < kPaths; ++i)
    if (offered(Path(i), size_class, open)) paths[count++] = Path(i);
  x_classes[size_class].tries = false;
  if (count <= 1) return count ? paths[0] : Path::cma;
  return x_classes[size_class].choose(paths, count, open);
}

Path PathChoice::SizeClass::choose(const Path* paths, size_t count, Open open) noexcept {
  const Path* const end = paths + count;
  const auto faster = [this, open](Path other) {
    const float by = best == Path::cma && !open.long_trials && !open.likely
                         ? kMuchFaster
                         : util::RecentRates::kClearly;
    return arm(other).typical() > by * arm(best).typical();
  };
  const auto tried = [this](Path path) { return arm(path).count() >= kTrials; };
  if (open.cma && open.likely && !begun && transfers >= kFirstCopy) {
    begun = true;
    best = paths[1];
    transfers = 0;
    retried = uint32_t(count - 1);  // CMA is tried next
  }
  tries = open.tries && trials_left > 0 && std::find(paths, end, on_trial) != end;
  if (tries) {
    --trials_left;
    return on_trial;
  }
  // Keeps the current path unless another is clearly faster, because changing costs time, too.
  if (std::find(paths, end, best) == end) best = paths[0];
  for (size_t i = 0; i < count; ++i)
    if (tried(paths[i]) && tried(best) && faster(paths[i])) best = paths[i];
  const uint32_t pause = open.rarely && best == Path::cma ? kRarely * retry_at : retry_at;
  if (!open.tries || ++transfers < pause) return best;
  tries = true;
  const auto next = [count](uint32_t path) { return path + 1 < count ? path + 1 : 0; };
  retried = next(retried);
  if (paths[retried] == best) retried = next(retried);
  transfers = 0;
  on_trial = paths[retried];
  trials_left = (open.long_trials && on_trial == Path::copy ? kLongTrials : kTrials) - 1;
  const auto known = [&](Path path) { return path == on_trial || path == best || tried(path); };
  if (!std::all_of(paths, end, known))
    retry_at = kFirstTrial;
  else
    retry_at = retry_at < kFirstRetry ? kFirstRetry : std::min(2 * retry_at, uint32_t(kRetryEvery));
  return on_trial;
}

void PathChoice::repeat_trial(size_t length) noexcept {
  SizeClass& of = x_classes[class_of(length)];
  if (of.tries) ++of.trials_left;
}

void PathChoice::record(size_t length, Path used, uint64_t nanoseconds) noexcept {
  if (length <= kUnmeasured) return;
  if (copies(used)) x_patience = 0;
  x_classes[class_of(length)].arms[size_t(used)].add(length, nanoseconds);
}

bool PathChoice::expects_help(size_t length) noexcept {
  SizeClass& size_class = x_classes[class_of(length)];
  if (size_class.alone == 0) return true;
  --size_class.alone;
  return false;
}

void PathChoice::helped(size_t length, bool by_sender) noexcept {
  SizeClass& size_class = x_classes[class_of(length)];
  size_class.unhelped = by_sender ? 0 : std::clamp<uint8_t>(size_class.unhelped * 2, 1, kMostAlone);
  size_class.alone = size_class.unhelped;
}

void PathChoice::sender_absent() noexcept {
  x_patience = std::clamp(x_patience * 2, 1u, kMostPatience);
  x_cma_until = x_patience;
}

}  // namespace erdma::transport::shm
