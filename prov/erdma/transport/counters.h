#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "util/socket_address.h"

/// What an endpoint counts: bytes and events by path. The thread that polls writes them, and they
/// are logged at close. They may lie in memory that other processes read at any time, where each
/// is a field (docs/statistics.md): only words of 8 bytes.
namespace erdma::transport {

/// Inside the host.
struct ShmCounters {
  uint64_t ring_bytes = 0;       ///< payload sent through rings
  uint64_t cma_read_bytes = 0;   ///< moved by process_vm_readv from here
  uint64_t cma_write_bytes = 0;  ///< moved by process_vm_writev from here
  uint64_t bounce_in_bytes = 0;  ///< received by copy through shared memory
  uint64_t bounce_out_bytes = 0;
  uint64_t cma_refusals = 0;  ///< calls or probes that the kernel refused
};

/// Through a NIC.
struct NicCounters {
  uint64_t sent_bytes = 0;    ///< payload of packets
  uint64_t read_bytes = 0;    ///< by RDMA READ issued here
  uint64_t write_bytes = 0;   ///< by RDMA WRITE issued here
  uint64_t bounce_bytes = 0;  ///< of all these, through memory of the transport's own
  uint64_t connects = 0;
  uint64_t reclaimed = 0;  ///< connections given up as least recently used
};

/// Of GPU memory of this side, whichever transport moves it: part of the bytes that those count.
struct GpuCounters {
  uint64_t direct_bytes =
      0;  ///< that the NIC reaches itself: moved from here, or shared with a peer
  uint64_t staged_bytes = 0;  ///< that CUDA copied from or to host memory for a transport
  uint64_t ipc_bytes = 0;     ///< read from memory of another process of this host
  uint64_t flushes = 0;       ///< messages whose bytes had to be flushed
};

/// Each counter by one store, as readers of other processes expect.
template <typename Counters>
void add(Counters& to, const Counters& more) noexcept {
  constexpr size_t kWords = sizeof(Counters) / sizeof(uint64_t);
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t& sum = reinterpret_cast<uint64_t*>(&to)[i];
    const uint64_t word = reinterpret_cast<const uint64_t*>(&more)[i];
    std::atomic_ref(sum).store(sum + word, std::memory_order_relaxed);
  }
}

/// Gives a link of its own counters for its peer. What it gives lives as long as the transport.
/// Polling thread.
class PeerCounters {
 public:
  virtual ShmCounters& shm_counters_of(const util::SocketAddress& peer) noexcept = 0;
  virtual NicCounters& nic_counters_of(const util::SocketAddress& peer) noexcept = 0;
  virtual GpuCounters& gpu_counters_of(const util::SocketAddress& peer) noexcept = 0;
  /// Of all peers, and what belongs to none.
  virtual ShmCounters all_shm_counters() const noexcept = 0;
  virtual NicCounters all_nic_counters() const noexcept = 0;

 protected:
  ~PeerCounters() = default;
};

}  // namespace erdma::transport
