#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/options.h"
#include "util/recent_rates.h"

namespace erdma::transport::shm {

/// Which side of a transfer through the bounce slots streams.
enum class Streaming : uint8_t { none, in, both };

/// A way to move bytes where several are possible: by the kernel, or by two copies through the
/// slots.
enum class Path : uint8_t { cma, copy, copy_streaming_in, copy_streaming_both };
inline constexpr size_t kPaths = 4;
inline constexpr bool copies(Path path) noexcept {
  return path != Path::cma;
}
inline constexpr Streaming streaming_of(Path path) noexcept {
  return path == Path::copy_streaming_both ? Streaming::both
         : path == Path::copy_streaming_in ? Streaming::in
                                           : Streaming::none;
}

/// Learns, per class of transfer size, which path is fastest between this pair of processes. That
/// depends on how their cores share caches, on page sizes and on the cost of a system call. The
/// first transfers use CMA, where it is permitted: a path that is slow, or whose slots have no
/// memory yet, would take most of the time of a process that sends few messages. Table-tested; uses
/// no clock.
class PathChoice {
 public:
  explicit PathChoice(StreamingPolicy streaming, PathPolicy paths = PathPolicy::measure) noexcept
      : x_streaming(streaming), x_paths(paths) {}

  struct Open {
    bool cma, copy;       ///< at least one
    bool backed = false;  ///< the slots for copies have memory
    bool tries = true;    ///< a path may be tried that is not known to be the fastest
    bool rarely = false;  ///< calls of the kernel are fast, so a copy is not likely to be faster
    /// Calls are known to be slow, so a copy through all slots may well be faster.
    bool long_trials = false;
    bool likely = false;  ///< a copy is likely to be faster than CMA
  };
  /// Chooses for the transfer that begins now.
  Path choose(size_t length, Open open) noexcept;
  /// The last choice for a transfer of this length was not the path that was fastest so far.
  bool tries(size_t length) const noexcept { return x_classes[class_of(length)].tries; }
  /// The next choice for this length may try another path. Only then does Open::rarely matter.
  bool trial_is_due(size_t length) const noexcept {
    const SizeClass& of = x_classes[class_of(length)];
    return of.trials_left == 0 && of.transfers + 1 >= of.retry_at;
  }
  /// If the last choice was a trial, it is made once more, since it will tell nothing.
  void repeat_trial(size_t length) noexcept;
  /// A transfer with this choice has moved all its bytes in this time.
  void record(size_t length, Path used, uint64_t nanoseconds) noexcept;
  /// False: the sender left its part of the last transfers of this size to the receiver, so the
  /// receiver moves this one alone. The sender is asked again now and then, ever more rarely.
  bool expects_help(size_t length) noexcept;
  /// A transfer that both sides could have moved is over; `by_sender`: the sender moved some of it.
  void helped(size_t length, bool by_sender) noexcept;
  /// A copy was chosen, but the sender did not do its half. A peer that computes and leaves the
  /// transfer to CMA is asked again ever more rarely.
  void sender_absent() noexcept;

  /// Trials of a path in a row: the first one after another path finds the buffers in the wrong
  /// core's caches.
  static constexpr unsigned kTrials = 3;
  /// The same for trials of Path::copy with Open::long_trials. A copy through all slots finds them
  /// and the buffers in the caches where copies leave them only after as many transfers as the
  /// slots hold; what is remembered of a trial is its last few transfers.
  static constexpr unsigned kLongTrials = 7;
  /// By how much a copy must be faster than CMA to be changed to, unless trials are long or that is
  /// likely. Short trials favour a copy: in a stream the first messages by CMA take twice as long
  /// as later ones, and the times of messages that overlap vary.
  static constexpr float kMuchFaster = 1.4F;
  /// Transfers until another path is tried, as long as there is one that was not.
  static constexpr unsigned kFirstTrial = 16;
  /// Transfers by CMA until copies begin that are likely to be faster.
  static constexpr unsigned kFirstCopy = 4;
  /// Transfers until another path is tried again. Each further pause is twice as long, up to
  /// kRetryEvery.
  static constexpr unsigned kFirstRetry = 64;
  static constexpr unsigned kRetryEvery = 512;
  /// So many times as long are these pauses where copies are tried rarely.
  static constexpr unsigned kRarely = 8;
  /// Up to this length CMA is used where it is permitted, until something longer has given the
  /// slots their memory: most messages up to this length go through the ring, if copying is faster
  /// (FragmentChoice).
  static constexpr size_t kOneCopy = size_t{128} * 1024;
  /// Transfers up to this length are not measured, and use CMA where it is permitted.
  static constexpr size_t kUnmeasured = size_t{8} * 1024;
  /// Up to this length CMA is used in any case where it is permitted.
  static constexpr size_t never_copied(bool backed) noexcept {
    return backed ? kUnmeasured : kOneCopy;
  }
  static constexpr size_t kSmallest =
      size_t{32} * 1024;  ///< upper bound of the first class; it doubles from class to class
  /// Upper bound of the last class but one.
  static constexpr size_t kLarge = size_t{16} * 1024 * 1024;
  static constexpr unsigned kMostPatience = 256;  ///< transfers by CMA after the sender was absent
  /// Transfers that the receiver moves alone after one without help.
  static constexpr uint8_t kMostAlone = 16;

 private:
  static constexpr size_t kClasses = 11;
  static_assert(kSmallest << (kClasses - 2) == kLarge);
  struct SizeClass {
    util::RecentRates arms[kPaths];
    uint32_t transfers = 0;  ///< since the last trial
    uint32_t retry_at = kFirstTrial;
    uint32_t retried = 0;  ///< which arm was tried again last
    unsigned trials_left = 0;
    uint8_t unhelped = 0;  ///< transfers to move alone after the last one without help
    uint8_t alone = 0;     ///< how many of them are still to come
    bool begun = false;    ///< copies because they are likely to be faster
    bool tries = false;
    Path on_trial = Path::cma;
    Path best = Path::cma;
    const util::RecentRates& arm(Path path) const noexcept { return arms[size_t(path)]; }
    /// One of `count` paths: the best, or now and then another if that is permitted.
    Path choose(const Path* paths, size_t count, Open open) noexcept;
  };
  static size_t class_of(size_t length) noexcept;
  bool offered(Path path, size_t size_class, Open open) const noexcept;

  StreamingPolicy x_streaming;
  PathPolicy x_paths;
  unsigned x_patience = 0;   ///< length of the pause after the last absence
  unsigned x_cma_until = 0;  ///< transfers left that use CMA without a choice
  SizeClass x_classes[kClasses];
};

}  // namespace erdma::transport::shm
