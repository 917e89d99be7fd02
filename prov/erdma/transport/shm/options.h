#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/counters.h"

namespace erdma::transport::shm {

enum class PtracerPolicy : uint8_t { ancestor, any, none };
enum class StreamingPolicy : uint8_t { calibrate, always, never };
/// How large messages move where CMA is permitted: by whatever is measured to be fastest; by CMA;
/// or, for tests, by copy unless the sender stays away.
enum class PathPolicy : uint8_t { measure, cma, copy };
/// What an endpoint's name binds: this port on every local IP (without a NIC), or this IP alone.
enum class NameScope : uint8_t { host, address };

using Counters = ShmCounters;

/// This value of Options::eager_bytes leaves the limit to FragmentLimits where processes share
/// cores, CMA is refused or calls of the kernel are slow.
inline constexpr size_t kDefaultEager = size_t{128} * 1024;

struct Options {
  bool cma = true;
  PathPolicy paths = PathPolicy::measure;
  PtracerPolicy ptracer = PtracerPolicy::ancestor;
  StreamingPolicy streaming = StreamingPolicy::calibrate;
  NameScope scope = NameScope::host;
  bool background = true;  ///< false, for tests: no thread; step() does its work
  /// Longest message through a hot ring, in bytes; beyond kMaxEager it takes several packets.
  size_t eager_bytes = kDefaultEager;
  unsigned hot_peers = 32;       ///< inbound peers that may have a hot ring at one time
  uint8_t protocol_version = 0;  ///< version of the packet headers: peers must have the same
  uint64_t connect_timeout_ns = 500'000'000;  ///< how long an unknown peer may take to appear
  /// Descriptor; whenever it is readable, poll() calls on_question(); -1 = none.
  int questions = -1;
  Counters* counters = nullptr;     ///< must outlive the transport; null: it has its own
  PeerCounters* by_peer = nullptr;  ///< each link counts there instead; must outlive the transport
};

}  // namespace erdma::transport::shm
