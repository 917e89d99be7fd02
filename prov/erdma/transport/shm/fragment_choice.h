#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/way_choice.h"

namespace erdma::transport::shm {

/// Learns, per class of message length, whether a message of medium length is faster in fragments,
/// which cross the ring by two copies, or by a rendezvous, by one copy of the kernel. That depends
/// on the processor: two copies overlap, but cost more where a line comes slowly from the other
/// core. Every message goes in fragments until a few rendezvous were tried. One for all links of an
/// endpoint.
class FragmentChoice {
 public:
  struct Way {
    bool fragments;
    bool timed;  ///< record() shall be told how long this message takes
  };
  /// What is chosen for. Messages of kLongestInTurns or less must be sent in turns.
  struct Kind {
    size_t length;  ///< above kShortest
    bool in_turns;  ///< the two sides take turns, so that messages do not overlap
  };
  /// Chooses for the message that is sent now.
  Way choose(Kind kind) noexcept {
    const WayChoice::Way way = x_classes[class_of(kind)].choose();
    return {way.first, way.timed};
  }
  /// A message that was to be timed was with the receiver after this time.
  void record(Kind kind, bool fragments, uint64_t nanoseconds) noexcept {
    x_classes[class_of(kind)].record(kind.length, fragments, nanoseconds);
  }

  /// Messages up to this length always go in packets.
  static constexpr size_t kShortest = size_t{8} * 1024;
  /// Messages up to this length go in packets unless the sides take turns.
  static constexpr size_t kLongestInTurns = size_t{32} * 1024;

 private:
  static constexpr size_t kClasses = 6;
  /// In turns up to 16, 32, 64 KiB, and longer; others up to 64 KiB, and longer.
  static constexpr size_t class_of(Kind kind) noexcept {
    const size_t in_turns = (kind.length > 2 * kShortest) + (kind.length > kLongestInTurns) +
                            (kind.length > 2 * kLongestInTurns);
    return kind.in_turns ? in_turns : in_turns + 2;
  }

  WayChoice x_classes[kClasses];
};

}  // namespace erdma::transport::shm
