#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "softerdma/fabric.h"

namespace softerdma {

class PeerProcess;

/// A lock in shared memory. If its holder died, another process takes it over. It also excludes
/// threads of one process.
class WordLock {
 public:
  WordLock(Fabric& fabric, std::atomic<uint32_t>& word) noexcept;
  WordLock(const WordLock&) = delete;
  WordLock& operator=(const WordLock&) = delete;
  ~WordLock() { x_word.store(0, std::memory_order_release); }

 private:
  std::atomic<uint32_t>& x_word;
};

/// File "posted<n>": stores of the n-th adapter of a process that are on their way to GPU memory. A
/// completion does not wait for them. They arrive in order, before a READ by the same adapter from
/// the same GPU returns. Some arrive sooner, at random, and all if there is no more room.
struct PostedShared {
  static constexpr uint32_t kStores = 8192;
  static constexpr uint64_t kBytes = 32 << 20;
  struct Store {
    uint64_t address;
    uint32_t length;
    uint32_t gpu;
    uint64_t at;  ///< position in data[]
  };

  std::atomic<uint32_t> lock;
  uint32_t count;   ///< number of entries in stores[]
  uint64_t bytes;   ///< number of bytes in data[]
  uint64_t random;  ///< state of the generator; starts at the same number each time
  Store stores[kStores];
  std::byte data[kBytes];
};

/// Posts a store to a GPU of `target`. If `chance` is n > 1, one store of n makes some of the
/// waiting ones arrive. Returns 0 or an errno of the memory.
int post_store(Fabric& fabric, PeerProcess& target, PostedShared& queue, uint32_t gpu,
               uint64_t chance, const iovec* iov, size_t count, uint64_t address) noexcept;
/// Makes earlier stores to the GPU arrive before a READ of it.
void arrive(Fabric& fabric, PeerProcess& target, PostedShared& queue, uint32_t gpu) noexcept;
/// Makes all stores arrive, before the adapter deregisters memory.
void arrive_all(Fabric& fabric, PeerProcess& target, PostedShared& queue) noexcept;

}  // namespace softerdma
