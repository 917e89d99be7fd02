#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/shm/options.h"
#include "util/clock.h"

namespace erdma::transport::shm {

class CmaCalls;

/// How long a message may be that crosses a ring in fragments. Where each process has a core, the
/// sender's copy and the receiver's overlap, and so do those of one message and the next, which is
/// why it may be longer if a rendezvous would have to copy as well. Where processes share cores,
/// all that counts is how long both copies keep a core busy, compared with one call of the kernel:
/// that depends on the processor and on the kernel, so it is measured. Polling thread only.
class FragmentLimits {
 public:
  FragmentLimits(const Options& options, CmaCalls& calls, const util::Clock& clock) noexcept
      : x_options(options), x_calls(calls), x_clock(clock) {}

  struct Limits {
    size_t message;    ///< bytes of one message
    size_t all_rings;  ///< bytes of messages of this length in the rings of all recent receivers
    size_t of_burst;   ///< bytes of one message that belongs to Bursts
  };
  /// `shared`: other threads run on this core. `cma`: one side may use CMA. `measured`: length of
  /// the message if it may go either way and is measured; otherwise 0. The first call with both of
  /// `shared` and `cma`, with more than kDefaultEager bytes, or of calls_are_fast(), takes some 50
  /// us to measure calls.
  Limits limits(bool shared, bool cma, size_t measured) noexcept {
    if (shared) return where_shared(cma);
    const bool longer =
        !chosen() && (!cma || (measured > kDefaultEager && copies_may_pay(measured)));
    return longer ? kCopied : Limits{x_options.eager_bytes, SIZE_MAX, SIZE_MAX};
  }

  /// Where each process has a core, too: one call is likely to be faster than two copies between
  /// cores, as it takes at most kClearly times as long as two in the caches of one core. May
  /// measure. For peers that CMA may access.
  bool calls_are_fast() noexcept { return call_per_copies() <= kClearly; }

  /// What is measured: so many bytes, so often. The fastest try counts, because the thread may
  /// lose its core in the others.
  static constexpr size_t kMeasured = size_t{64} * 1024;
  static constexpr unsigned kTries = 4;
  /// The call must take so many times as long as two copies. The buffers are in the caches here. In
  /// a message they are not, and then two copies lose more than one.
  static constexpr float kClearly = 2;
  static constexpr Limits kCallsPay{size_t{64} * 1024, size_t{256} * 1024, size_t{16} * 1024};
  /// Half of what a ring has at first, so that the next message fits while the receiver takes this
  /// one.
  static constexpr Limits kCopiesPay{size_t{512} * 1024, size_t{896} * 1024, SIZE_MAX};

  /// Where each process has a core and CMA is refused, or where calls are slow, so that fragments
  /// and rendezvous are compared (FragmentChoice). A stream of longer messages is faster in
  /// fragments, too, but two processes that exchange them are not: each has to write all of its
  /// message before it reads (512 KiB: a tenth slower).
  static constexpr Limits kCopied{size_t{256} * 1024, SIZE_MAX, SIZE_MAX};

 private:
  bool copies_may_pay(size_t length) noexcept {
    return length <= kCopied.message && !calls_are_fast();
  }
  bool chosen() const noexcept { return x_options.eager_bytes != kDefaultEager; }  ///< by the user
  Limits where_shared(bool cma) noexcept;
  float call_per_copies() noexcept;
  float measure() noexcept;

  const Options& x_options;
  CmaCalls& x_calls;
  const util::Clock& x_clock;
  std::optional<float> x_call_per_copies;
};

}  // namespace erdma::transport::shm
