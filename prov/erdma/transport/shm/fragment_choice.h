#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/way_choice.h"

namespace erdma::transport::shm {

/// Learns, per class of message length, whether a message of medium length is faster in packets,
/// which cross the ring by two copies, or by a rendezvous, by one copy of the kernel. That depends
/// on the processor: two copies overlap, but cost more where a line comes slowly from the other
/// core. Every message goes in packets until a few rendezvous were tried, but see
/// begin_with_rendezvous(). It is not asked about streams both ways where calls are fast. One for
/// all links of an endpoint.
class FragmentChoice {
 public:
  struct Way {
    bool packets;
    bool timed;  ///< record() shall be told how long this message takes
  };
  struct Kind {
    size_t length;  ///< above kShortest
    bool in_turns;  ///< the sides take turns, so messages do not overlap; see kLongestOnlyInTurns
  };
  /// Call it before the first choice, if calls of the kernel are fast: messages in turns above
  /// kLongestOnlyInTurns begin with a rendezvous. Shorter ones are often those that their sender
  /// has just written.
  void begin_with_rendezvous() noexcept {
    for (const size_t length : {2 * kLongestOnlyInTurns, 4 * kLongestOnlyInTurns})
      x_classes[class_of({length, true})].begin_with_second();
  }
  /// Chooses for the message that is sent now.
  Way choose(Kind kind) noexcept {
    const WayChoice::Way way = x_classes[class_of(kind)].choose();
    return {way.first, way.timed};
  }
  /// A message that was to be timed was with the receiver after this time.
  void record(Kind kind, bool packets, uint64_t nanoseconds) noexcept {
    x_classes[class_of(kind)].record(kind.length, packets, nanoseconds);
  }

  /// Messages up to this length always go in packets.
  static constexpr size_t kShortest = size_t{8} * 1024;
  /// Up to this length a choice is made only for messages in turns.
  static constexpr size_t kLongestOnlyInTurns = size_t{32} * 1024;

 private:
  /// In turns up to 16, 32, 64, 128 KiB, and longer; others up to 64, 128 KiB, and longer.
  static constexpr size_t kClasses = 8;
  static constexpr size_t class_of(Kind kind) noexcept {
    if (kind.length <= kLongestOnlyInTurns) return kind.length > kLongestOnlyInTurns / 2 ? 1 : 0;
    const size_t longer = kind.length > 4 * kLongestOnlyInTurns   ? 2
                          : kind.length > 2 * kLongestOnlyInTurns ? 1
                                                                  : 0;
    return (kind.in_turns ? 2 : 5) + longer;
  }

  WayChoice x_classes[kClasses];
};

}  // namespace erdma::transport::shm
