#pragma once

#include <cstddef>
#include <cstdint>

#include "util/recent_rates.h"

namespace erdma::transport::shm {

/// Learns, per class of message length, whether a message of medium length is faster in fragments,
/// which cross the ring by two copies, or by a rendezvous, by one copy of the kernel. That depends
/// on the processor: two copies overlap, but cost more where a line comes slowly from the other
/// core. Every message goes in fragments until a few rendezvous were tried. One for all links of an
/// endpoint. Table-tested; uses no clock.
class FragmentChoice {
 public:
  struct Way {
    bool fragments;
    bool timed;  ///< record() shall be told how long this message takes
  };
  /// Chooses for the message that is sent now. The length is above kShortest.
  Way choose(size_t length) noexcept;
  /// A message that was to be timed was with the receiver after this time.
  void record(size_t length, bool fragments, uint64_t nanoseconds) noexcept;

  /// Shorter messages go in fragments. A rendezvous would be little faster in a round trip, and a
  /// fifth slower in a stream (Sapphire Rapids). If the sender has just written the bytes, the call
  /// takes twice as long, because they come from the cache of its core.
  static constexpr size_t kShortest = size_t{32} * 1024;
  static constexpr unsigned kTrials = 3;  ///< messages in a row that try the other way
  /// Messages before the other way is tried first, and until it is tried again. Each further pause
  /// is twice as long, up to kLongestPause.
  static constexpr unsigned kFirstTrial = 16;
  static constexpr unsigned kFirstPause = 32;
  static constexpr unsigned kLongestPause = 4096;
  static constexpr unsigned kMostUntimed = 2;  ///< trials, until a preferred rendezvous is given up
  static constexpr unsigned kTimedEvery = 8;   ///< of the messages that go the usual way

  static constexpr size_t kClasses = 2;  ///< up to 64 KiB, and longer ones
  static size_t class_of(size_t length) noexcept;

 private:
  struct SizeClass {
    util::RecentRates fragments, rendezvous;
    uint32_t messages = 0;  ///< since the last trial
    uint32_t pause = kFirstTrial;
    uint8_t trials_left = 0;
    uint8_t untimed = 0;  ///< trials since the last rendezvous was timed, if it is preferred
    bool prefers_rendezvous = false;
  };
  static Way give_up(SizeClass& own) noexcept;

  SizeClass x_classes[kClasses];
};

}  // namespace erdma::transport::shm
