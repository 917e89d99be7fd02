#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/memory.h"
#include "transport/shm/fragment_choice.h"
#include "util/clock.h"

namespace erdma::transport::shm {

/// Times messages of medium length, one at a time, for FragmentChoice: until all fragments but
/// the last are in the ring, or until the memory that a rendezvous has shared is taken back. One
/// for all links of an endpoint, which name themselves. Polling thread only.
class FragmentTimer {
 public:
  explicit FragmentTimer(const util::Clock& clock) noexcept : x_clock(clock) {}

  /// Chooses for the message that is sent now. `alone`: no other rendezvous is under way, which
  /// this one would have to wait for.
  bool prefers_fragments(const void* link, size_t length, bool alone) noexcept;
  /// A fragment that is not the last is in the ring.
  void written(const void* link, size_t length) noexcept {
    if (x_link == link) [[unlikely]]
      add(length);
  }
  void shared(const void* link, size_t length, const RemoteKey& remote_key) noexcept;
  void revoked(const void* link, const RemoteKey& remote_key) noexcept {
    if (x_link == link) [[unlikely]]
      end(remote_key);
  }
  /// The message waits for something else than the receiver: its time tells nothing.
  void forget(const void* link) noexcept {
    if (x_link == link) x_link = nullptr;
  }

 private:
  void add(size_t length) noexcept;
  void end(const RemoteKey& remote_key) noexcept;

  const util::Clock& x_clock;
  FragmentChoice x_choice;
  const void* x_link = nullptr;  ///< null: no message is being timed
  bool x_fragments = false;
  size_t x_length = 0;
  size_t x_written = 0;
  uint64_t x_began = 0;  ///< ns
  RemoteKey x_remote_key;
};

}  // namespace erdma::transport::shm
