#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/memory.h"
#include "transport/shm/fragment_choice.h"
#include "util/clock.h"

namespace erdma::transport::shm {

/// Times messages of medium length, one at a time, for FragmentChoice. One for all links of an
/// endpoint, which name themselves. Polling thread only.
///
/// What counts is how long a message keeps its sender and its receiver busy. The sender sees only
/// its own part, and how long it waits for a receiver that may have other work: so receivers tell
/// what theirs took.
class FragmentTimer {
 public:
  explicit FragmentTimer(const util::Clock& clock) noexcept : x_clock(clock) {}

  /// As FragmentChoice::begin_with_rendezvous(). knows_calls(): it has been called.
  void begin(bool calls_are_fast) noexcept {
    x_knows_calls = true;
    if (calls_are_fast) x_choice.begin_with_rendezvous();
  }
  bool knows_calls() const noexcept { return x_knows_calls; }
  /// Chooses for the message that is sent now. `alone`: no other rendezvous is under way, which
  /// this one would have to wait for.
  bool prefers_packets(const void* link, FragmentChoice::Kind kind, bool alone) noexcept;
  /// A message of this link is being timed.
  bool times(const void* link) const noexcept { return x_link == link; }
  /// The message that is being timed goes into an empty ring, so that a receiver which polls will
  /// take some of it soon; see Receiver::consumed.
  void watch(uint64_t consumed) noexcept {
    x_watched = true;
    x_consumed = consumed;
  }
  /// What a link knows about its receiver.
  struct Receiver {
    uint32_t take_rate;  ///< bytes per us at which it takes fragments out of the ring; 0 = unknown
    bool sends_too;      ///< something of it has arrived meanwhile
    uint64_t consumed;   ///< changes when it takes something out of the ring
  };
  /// The next message of the link begins. One whose packets were to be timed has not left.
  void begins(const void* link) noexcept {
    if (x_link == link && x_packets) x_link = nullptr;
  }
  /// A packet of the message is in the ring, for a link that is timed: a fragment, but not the last
  /// one, or the whole message.
  void written(size_t length, Receiver receiver) noexcept;
  /// Returns whether the message that is to be shared now is being timed.
  bool times_read(const void* link, size_t length) const noexcept {
    return x_link == link && !x_packets && x_kind.length == length && !x_remote_key.size;
  }
  void shared(const void* link, size_t length, const RemoteKey& remote_key) noexcept;
  /// The receiver is done with what was shared; for a link that is timed. `reading`: how long it
  /// read, in ns; 0 = unknown. `take_rate`: see Receiver.
  void revoked(const RemoteKey& remote_key, uint32_t reading, uint32_t take_rate) noexcept;
  /// Messages of the link wait for room in the ring: how long one takes tells nothing.
  void wait(const void* link) noexcept {
    if (x_link != link) return;
    if (x_packets) x_link = nullptr;
    x_alone = false;
  }
  /// The message that was timed is given up.
  void forget(const void* link) noexcept {
    if (x_link == link) x_link = nullptr;
  }

 private:
  const util::Clock& x_clock;
  FragmentChoice x_choice;
  const void* x_link = nullptr;  ///< null: no message is being timed
  bool x_knows_calls = false;
  bool x_packets = false;
  bool x_alone = false;
  FragmentChoice::Kind x_kind{};
  size_t x_written = 0;
  uint64_t x_began = 0;     ///< ns
  uint64_t x_consumed = 0;  ///< when the message began; if x_watched
  bool x_watched = false;
  RemoteKey x_remote_key;
};

}  // namespace erdma::transport::shm
