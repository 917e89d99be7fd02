#include "transport/staging/flusher.h"

#include <algorithm>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "util/log.h"

namespace erdma::transport::staging {

Flusher::~Flusher() {
  for (const auto* list : {&x_next, &x_targets})
    for (const FlushTarget& target : *list) x_direct->release_flush(target);
}

int Flusher::add(const iovec* memory, size_t count, uint64_t token) noexcept try {
  x_next.reserve(x_next.size() + count);
  x_next_tokens.reserve(x_next_tokens.size() + 1);
  const size_t before = x_next.size();
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    const FlushTarget target = x_direct->acquire_flush(memory[i]);
    if (target.status) {
      // No token waits for the earlier pieces, so no flush would release them.
      for (; x_next.size() > before; x_next.pop_back()) x_direct->release_flush(x_next.back());
      return target.status;
    }
    if (!target.held) continue;
    any = true;
    const bool known = std::any_of(x_next.begin(), x_next.end(),
                                   [&](const auto& one) { return one.held == target.held; });
    if (known)
      x_direct->release_flush(target);
    else
      x_next.push_back(target);
  }
  if (!any) return 0;
  x_next_tokens.push_back(token);
  return kFlushing;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

int Flusher::poll(Sink& sink) noexcept {
  if (x_tokens.empty() && x_next_tokens.empty()) return 0;
  int steps = x_tokens.empty() ? begin() : 0;
  while (x_posted < x_targets.size()) {
    const int rc = post(x_targets[x_posted]);
    if (rc == -FI_EAGAIN) break;
    ++x_posted;
    ++steps;
    if (rc == 0) continue;
    x_repeats = false;
    end_one(rc);
  }
  if (x_done < x_targets.size()) return steps;
  return steps + (x_status && x_repeats ? repeat() : end(sink));
}

int Flusher::begin() noexcept {
  x_targets.swap(x_next);
  x_tokens.swap(x_next_tokens);
  x_repeats = true;
  start();
  return 1;
}

void Flusher::start() noexcept {
  x_posted = x_done = 0;
  x_status = 0;
}

/// The READs that succeeded are repeated with the others, because on_read() does not tell which
/// they are.
int Flusher::repeat() noexcept {
  ERDMA_INFO(EP_DATA, "what the NIC wrote to a GPU is flushed once more: %s\n",
             fi_strerror(-x_status));
  x_repeats = false;
  start();
  return 1;
}

int Flusher::post(const FlushTarget& target) noexcept {
  util::Result<Link*> loop = x_inner.link_to(x_name);
  if (!loop) return loop.error();
  x_loop = *loop;
  const iovec local{&x_sink, sizeof(x_sink)};
  return (*loop)->get({target.memory, 0, 1}, &local, 1, kToken);
}

void Flusher::on_read(int status) noexcept {
  if (status != 0) x_down_due = true;
  end_one(status);
}

void Flusher::end_one(int status) noexcept {
  ++x_done;
  if (!x_status) x_status = status;
}

/// READs that were posted have ended before, in on_read(). Those that follow need not end for a
/// connection that is known to have ended, unless all are repeated anyway.
void Flusher::on_link_down(const Link& link, int status) noexcept {
  if (&link != x_loop) return;
  const bool known = std::exchange(x_down_due, false);
  if (known && !x_repeats) return;
  x_repeats = x_repeats && link.was_up();
  for (; x_posted < x_targets.size(); ++x_posted) end_one(status);
}

int Flusher::end(Sink& sink) noexcept {
  if (x_status)
    ERDMA_NOTICE(gpu_refused, EP_DATA,
                 "what the NIC wrote to a GPU can't be flushed by reading it back (%s): the "
                 "messages end in errors",
                 fi_strerror(-x_status));
  for (const FlushTarget& target : x_targets) x_direct->release_flush(target);
  x_targets.clear();
  // The upcall may add memory to flush, which begins another round.
  x_over.clear();
  x_over.swap(x_tokens);
  for (const uint64_t token : x_over) sink.on_done(token, x_status);
  return int(x_over.size());
}

}  // namespace erdma::transport::staging
