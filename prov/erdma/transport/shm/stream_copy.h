#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/options.h"

/// Copying past the cache, and the choice when to. Lines that one core wrote and another reads
/// cross slowly while they are dirty in the writer's cache; streaming stores put them where both
/// reach.
namespace erdma::transport::shm {

using CopyFunction = void (*)(void* to, const void* from, size_t length);

/// memcpy with streaming stores, complete before any later store of this thread becomes visible.
/// Where the machine has none it is memcpy.
void stream_copy(void* to, const void* from, size_t length) noexcept;
void plain_copy(void* to, const void* from, size_t length) noexcept;

/// Which side of a bounce transfer streams.
enum class Streaming : uint8_t { none, in, both };
inline constexpr size_t kStreamings = 3;

/// Learns, per class of transfer size, which way moves bytes fastest between this pair of
/// processes: that depends on how their cores share caches. Table-tested; knows no clock.
class StreamingChoice {
 public:
  explicit StreamingChoice(StreamingPolicy policy) noexcept : x_policy(policy) {}

  /// For the transfer that begins now.
  Streaming choose(size_t length) noexcept;
  /// A transfer so chosen has moved all its bytes in this time.
  void record(size_t length, Streaming used, uint64_t nanoseconds) noexcept;

  static constexpr unsigned kTrials = 2;        ///< of each way, before the best is used
  static constexpr unsigned kRetryEvery = 256;  ///< transfers, then another way is tried again
  static constexpr size_t kSmall = 128 * 1024;  ///< upper bounds of all classes but the last
  static constexpr size_t kMedium = 2 * 1024 * 1024;
  static constexpr size_t kLarge = 16 * 1024 * 1024;

 private:
  static constexpr size_t kClasses = 4;
  static constexpr unsigned kRecent = 4;
  /// One way to move one class: its last few rates. The best of them counts, because a rate is only
  /// ever too low: somebody was descheduled.
  struct Arm {
    double rates[kRecent] = {};
    unsigned recorded = 0;
    double best() const noexcept;
  };
  struct SizeClass {
    Arm arms[kStreamings];
    unsigned transfers = 0;
    unsigned retried = 0;  ///< which arm was tried again last
  };
  static size_t class_of(size_t length) noexcept;
  static size_t arms_of(size_t size_class) noexcept;
  Streaming learnt(size_t size_class) noexcept;

  StreamingPolicy x_policy;
  SizeClass x_classes[kClasses];
};

}  // namespace erdma::transport::shm
