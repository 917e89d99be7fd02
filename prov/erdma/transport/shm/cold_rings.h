#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "transport/shm/layout.h"
#include "transport/shm/memfd.h"
#include "util/result.h"

namespace erdma::transport::shm {

/// One small ring of this endpoint's.
struct ColdPlace {
  ColdChunk* chunk = nullptr;
  uint32_t index = 0;
  int fd = -1;  ///< of the chunk; open as long as the ColdRings lives
};

/// The small rings that every inbound peer starts with, in chunks of kColdRings that never move.
/// Any thread may call; the rings' content belongs to the polling thread and the peers.
class ColdRings {
 public:
  /// `sleeps_from_start`: may_sleep is set in every chunk when it is made (no membarrier here).
  explicit ColdRings(bool sleeps_from_start) noexcept : x_sleeps(sleeps_from_start) {}

  /// An empty ring that no peer uses, for one that `registered` for expedited barriers or did not.
  util::Result<ColdPlace> acquire(bool registered);
  /// Neither its former sender nor the polling thread touches it any more.
  void release(const ColdPlace& place) noexcept;
  /// Sets may_sleep everywhere, for good. Who gets a ring from now on sees it. True if all who got
  /// one before registered for expedited barriers.
  bool announce_sleep() noexcept;

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
