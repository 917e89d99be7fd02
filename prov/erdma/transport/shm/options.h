#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/counters.h"

namespace erdma::transport::shm {

enum class PtracerPolicy : uint8_t { ancestor, any, none };
enum class StreamingPolicy : uint8_t { calibrate, always, never };
/// How large messages move where CMA is permitted: what proves fastest; by CMA; or, for tests, by
/// copy unless the sender does not come.
enum class PathPolicy : uint8_t { measure, cma, copy };
/// How an endpoint's name binds: every local IP with this port (no NIC), or this IP alone.
enum class NameScope : uint8_t { host, address };

using Counters = ShmCounters;

struct Options {
  bool cma = true;
  PathPolicy paths = PathPolicy::measure;
  PtracerPolicy ptracer = PtracerPolicy::ancestor;
  StreamingPolicy streaming = StreamingPolicy::calibrate;
  NameScope scope = NameScope::host;
  bool background = true;        ///< false, for tests: no thread, step() does its work
  size_t eager_bytes = 8192;     ///< largest payload through a hot ring; at most 16384
  size_t eager_most = 8192;      ///< the same where cores are shared, or messages before it wait
  unsigned hot_peers = 32;       ///< inbound peers with a large ring at one time
  uint8_t protocol_version = 0;  ///< of the headers in packets: peers must have the same
  uint64_t connect_timeout_ns = 500'000'000;  ///< how long a peer never met may take to appear
  int questions = -1;  ///< whenever it becomes readable, poll() calls on_question(); -1 = never
  Counters* counters = nullptr;     ///< outlive the transport; null: it has some of its own
  PeerCounters* by_peer = nullptr;  ///< each link counts there instead; outlives the transport
};

}  // namespace erdma::transport::shm
