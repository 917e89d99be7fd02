#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "util/socket_address.h"

/// The counters of an endpoint: bytes and events of each path. The polling thread writes them, and
/// the endpoint logs them when it closes. They may lie in memory that other processes read at any
/// time, where each is a field (docs/statistics.md). Therefore each counter is a word of 8 bytes.
namespace erdma::transport {

/// Traffic inside the host.
struct ShmCounters {
  uint64_t ring_bytes = 0;        ///< payload sent through rings
  uint64_t cma_read_bytes = 0;    ///< moved by process_vm_readv from here
  uint64_t cma_write_bytes = 0;   ///< moved by process_vm_writev from here
  uint64_t bounce_in_bytes = 0;   ///< received as copies through shared memory
  uint64_t bounce_out_bytes = 0;  ///< sent that way
  uint64_t cma_refusals = 0;      ///< calls or probes that the kernel refused
  uint64_t byte_ring_bytes = 0;   ///< the part of ring_bytes that was longer than a slot
  uint64_t region_bytes = 0;      ///< the part of the CMA bytes in regions that the peer shared
  uint64_t connects = 0;          ///< connections that were requested
  uint64_t waits = 0;             ///< attempts to send a packet for which the ring had no room
};

/// Traffic through a NIC.
struct NicCounters {
  uint64_t sent_bytes = 0;    ///< payload of packets
  uint64_t read_bytes = 0;    ///< by RDMA READ issued here
  uint64_t write_bytes = 0;   ///< by RDMA WRITE issued here
  uint64_t bounce_bytes = 0;  ///< the part of all these that passed through transport buffers
  uint64_t connects = 0;
  uint64_t reclaimed = 0;  ///< connections closed because they were the least recently used
  /// The part of sent_bytes that the NIC fetches from a block, because the packet is longer than
  /// the NIC takes inline. The rest is counted nowhere: short packets pay for one counter only.
  uint64_t fetched_bytes = 0;
  uint64_t waits = 0;  ///< attempts to send a packet that found no credit, room or memory
  // Bytes of transfers for which this side could not register its memory, by the reason.
  uint64_t refused_always_bytes = 0;  ///< no memory is registered, during the whole run
  uint64_t refused_short_bytes = 0;   ///< too short where nothing stays registered
  uint64_t refused_room_bytes = 0;    ///< a limit of the NIC or of locked memory is reached
  uint64_t refused_memory_bytes = 0;  ///< this memory cannot be registered
};

/// Traffic of GPU memory of this side, over any transport. The counters of the transports include
/// these bytes.
struct GpuCounters {
  uint64_t direct_bytes = 0;  ///< moved by the NIC itself, or shared with a peer for that
  uint64_t staged_bytes = 0;  ///< copied by CUDA from or to host memory for a transport
  uint64_t ipc_bytes = 0;     ///< read from memory of another process of this host
  uint64_t flushes = 0;       ///< messages whose bytes had to be flushed
};

/// Adds `more`. Stores each counter once, since other processes may read it at any time.
template <typename Counters>
void add(Counters& to, const Counters& more) noexcept {
  constexpr size_t kWords = sizeof(Counters) / sizeof(uint64_t);
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t& sum = reinterpret_cast<uint64_t*>(&to)[i];
    const uint64_t word = reinterpret_cast<const uint64_t*>(&more)[i];
    std::atomic_ref(sum).store(sum + word, std::memory_order_relaxed);
  }
}

/// Provides the counters of each peer. They live as long as the transport. To be called on the
/// polling thread.
class PeerCounters {
 public:
  virtual ShmCounters& shm_counters_of(const util::SocketAddress& peer) noexcept = 0;
  virtual NicCounters& nic_counters_of(const util::SocketAddress& peer) noexcept = 0;
  virtual GpuCounters& gpu_counters_of(const util::SocketAddress& peer) noexcept = 0;
  /// The sums over all peers, and what belongs to no peer.
  virtual ShmCounters all_shm_counters() const noexcept = 0;
  virtual NicCounters all_nic_counters() const noexcept = 0;

 protected:
  ~PeerCounters() = default;
};

}  // namespace erdma::transport
