#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "softerdma/fabric.h"

namespace softerdma {

class PeerProcess;

/// A lock in shared memory that is taken over from the dead; threads of one process wait for one
/// another.
class WordLock {
 public:
  WordLock(Fabric& fabric, std::atomic<uint32_t>& word) noexcept;
  WordLock(const WordLock&) = delete;
  WordLock& operator=(const WordLock&) = delete;
  ~WordLock() { x_word.store(0, std::memory_order_release); }

 private:
  std::atomic<uint32_t>& x_word;
};

/// File "posted<n>": stores of the n-th adapter of a process to memory of GPUs that are on their
/// way there. A completion does not wait for them. They arrive, in order, when the same adapter
/// reads from the same GPU, before that read returns; some sooner if chance has it, all if there is
/// no room for more.
struct PostedShared {
  static constexpr uint32_t kStores = 8192;
  static constexpr uint64_t kBytes = 32 << 20;
  struct Store {
    uint64_t address;
    uint32_t length;
    uint32_t gpu;
    uint64_t at;  ///< in data[]
  };

  std::atomic<uint32_t> lock;
  uint32_t count;   ///< of stores[]
  uint64_t bytes;   ///< of data[]
  uint64_t random;  ///< state of the generator; starts at the same number each time
  Store stores[kStores];
  std::byte data[kBytes];
};

/// Posts a store to a GPU of `target`. With `chance` n > 1 one store of n makes some of those that
/// wait arrive. 0 or an errno of the memory's.
int post_store(Fabric& fabric, PeerProcess& target, PostedShared& queue, uint32_t gpu,
               uint64_t chance, const iovec* iov, size_t count, uint64_t address) noexcept;
/// A read of a GPU: what was stored there before arrives.
void arrive(Fabric& fabric, PeerProcess& target, PostedShared& queue, uint32_t gpu) noexcept;
/// All of it: the adapter lets go of the memory.
void arrive_all(Fabric& fabric, PeerProcess& target, PostedShared& queue) noexcept;

}  // namespace softerdma
