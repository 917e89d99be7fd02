#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/options.h"

namespace erdma::transport::shm {

/// Decides whether the payloads of one ring are written past the cache. That pays where it is slow
/// to write a line that the receiver read last: its core is distant, or a virtual machine was
/// moved. The time of an ordinary copy shows this, so one copy in a few is measured. Table-tested;
/// uses no clock.
class EagerStreaming {
 public:
  explicit EagerStreaming(StreamingPolicy policy = StreamingPolicy::calibrate) noexcept
      : x_policy(policy) {}

  struct Choice {
    bool stream;
    bool measure;  ///< an ordinary copy, whose time record() expects
  };

  /// Decides for the payload that is written next.
  Choice choose(size_t length) noexcept {
    if (length < kLeast) return {false, false};
    if (x_policy != StreamingPolicy::calibrate) return {x_policy == StreamingPolicy::always, false};
    const bool measure = ++x_since_measured >= (x_far ? kMeasureFar : kMeasureNear);
    if (measure) x_since_measured = 0;
    return {x_far && !measure, measure};
  }

  void record(size_t length, uint64_t nanoseconds) noexcept {
    const bool slow = nanoseconds * kLineBytes > kSlowLine * length;
    if (slow == x_far) {
      x_votes = 0;
      return;
    }
    // A single slow copy may be a time slice that ended, so measure again at once before believing
    // it.
    x_since_measured = kMeasureFar;
    if (++x_votes < kVotes) return;
    x_far = slow;
    x_votes = 0;
    x_since_measured = 0;
  }

  static constexpr size_t kLeast = 1024;       ///< shorter payloads are never streamed
  static constexpr uint64_t kSlowLine = 8;     ///< ns; near cores take 2 to 5, far ones 10 to 20
  static constexpr unsigned kMeasureNear = 8;  ///< one ordinary copy in this many is measured
  static constexpr unsigned kMeasureFar = 64;
  static constexpr unsigned kVotes = 3;  ///< measurements that must agree

 private:
  static constexpr uint64_t kLineBytes = 64;
  StreamingPolicy x_policy;
  bool x_far = false;
  unsigned x_votes = 0;
  unsigned x_since_measured = 0;
};

}  // namespace erdma::transport::shm
