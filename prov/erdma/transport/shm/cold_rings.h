#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "transport/shm/layout.h"
#include "transport/shm/memfd.h"
#include "util/result.h"

namespace erdma::transport::shm {

/// One cold ring of this endpoint.
struct ColdPlace {
  ColdChunk* chunk = nullptr;
  uint32_t index = 0;
};

/// The cold rings with which every inbound peer begins, in chunks of kColdRings that never move.
/// Any thread may call; the content of the rings belongs to the polling thread and the peers.
class ColdRings {
 public:
  /// `sleeps_from_start`: each new chunk has may_sleep set from the beginning, without membarrier.
  explicit ColdRings(bool sleeps_from_start) noexcept : x_sleeps(sleeps_from_start) {}

  /// An empty ring that no peer uses. `registered`: its new user has registered for expedited
  /// barriers.
  util::Result<ColdPlace> acquire(bool registered);
  /// The descriptor of the chunk; open as long as this object exists.
  int descriptor_of(const ColdPlace& place) noexcept;
  /// Neither the former sender nor the polling thread touches the ring any more.
  void release(const ColdPlace& place) noexcept;
  /// Sets may_sleep in all chunks; peers that get a ring later see it. True if all peers that got
  /// one before had registered for expedited barriers.
  bool announce_sleep() noexcept;
  /// Clears may_sleep in all chunks. False: a peer has not registered for expedited barriers, so
  /// that the next sleep would need a slow one; may_sleep stays set.
  bool announce_polling() noexcept;

 private:
  struct Chunk {
    Memfd segment;
    uint64_t used = 0;
  };
  int grow();

  std::mutex x_mutex;
  std::vector<Chunk> x_chunks;
  bool x_sleeps;
  bool x_all_registered = true;
};

}  // namespace erdma::transport::shm
