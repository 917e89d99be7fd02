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
  /// Chooses for the message that is sent now. The length is above kShortest.
  Way choose(size_t length) noexcept {
    const WayChoice::Way way = x_classes[class_of(length)].choose();
    return {way.first, way.timed};
  }
  /// A message that was to be timed was with the receiver after this time.
  void record(size_t length, bool fragments, uint64_t nanoseconds) noexcept {
    x_classes[class_of(length)].record(length, fragments, nanoseconds);
  }

  /// Shorter messages go in fragments. A rendezvous would be little faster in a round trip, and a
  /// fifth slower in a stream (Sapphire Rapids). If the sender has just written the bytes, the call
  /// takes twice as long, because they come from the cache of its core.
  static constexpr size_t kShortest = size_t{32} * 1024;

  static constexpr size_t kClasses = 2;  ///< up to 64 KiB, and longer ones
  static constexpr size_t class_of(size_t length) noexcept {
    return length <= 2 * kShortest ? 0 : 1;
  }

 private:
  WayChoice x_classes[kClasses];
};

}  // namespace erdma::transport::shm
