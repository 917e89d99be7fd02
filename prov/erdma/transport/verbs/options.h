#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/counters.h"

namespace erdma::transport::verbs {

/// Which side moves the bytes of a long message. automatic = write: either way the receiver has
/// them after one and a half round trips, and no device is faster at READ.
enum class Rendezvous : uint8_t { automatic, read, write };

using Counters = NicCounters;

struct Options {
  Rendezvous rendezvous = Rendezvous::automatic;
  size_t eager_bytes = 8192;        ///< largest payload of a packet to a busy peer
  unsigned max_connections = 1024;  ///< the least recently used are given up beyond this number
  uint64_t connect_timeout_ns = 10'000'000'000;  ///< how long a peer may take to appear
  uint64_t peer_timeout_ns = 10'000'000'000;     ///< silence after which a peer is dead
  /// How often to look for silent peers.
  uint64_t tick_ns() const noexcept {
    return std::clamp<uint64_t>(peer_timeout_ns / 12, 100'000, 1'000'000'000);
  }
  uint8_t protocol_version = 0;  ///< version of the packet headers: peers must have the same
  std::string job_key;           ///< both sides must have the same; empty = none
  /// Descriptor; whenever it is readable, poll() calls on_question(); -1 = none.
  int questions = -1;
  Counters* counters = nullptr;     ///< must outlive the transport; null: it has its own
  PeerCounters* by_peer = nullptr;  ///< each link counts there instead; must outlive the transport
  bool background = true;           ///< false, for tests: no thread; step() does its work
};

}  // namespace erdma::transport::verbs
