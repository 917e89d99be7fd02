#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "hmem/cuda.h"
#include "transport/transport.h"

/// Device memory that a peer of this host reads where it is (CUDA IPC): no copy through host
/// memory. Offered by expose(), and refused by read() where the driver can't open it.
namespace erdma::transport::staging {

class StagingLink;

/// What the exposure of an offer holds; its size tells it from all others.
struct Offer {
  hmem::IpcHandle handle;
  uint64_t offset;  ///< bytes into the allocation

  void encode(Exposure& exposure) const noexcept;
  static Offer decode(const Exposure& exposure) noexcept;
};

/// The allocations of one peer that are open here, the most recently used ones. Without CUDA there
/// are none.
class PeerMemory {
 public:
  explicit PeerMemory(hmem::Cuda* cuda) noexcept : x_cuda(cuda) {}
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory() { close(); }

  /// Where the offered memory is for the device that `near` belongs to. -FI_EOPNOTSUPP: nowhere.
  util::Result<const std::byte*> reach(const Offer& offer, const void* near,
                                       size_t length) noexcept;
  void close() noexcept;

 private:
  struct Open {
    hmem::IpcHandle handle;
    hmem::IpcMemory memory;
    uint64_t used;  ///< later is higher
  };
  util::Result<const Open*> open(const Offer& offer, const void* near) noexcept;

  hmem::Cuda* const x_cuda;
  std::vector<Open> x_open;
  uint64_t x_uses = 0;
};

/// Copies of offered memory that are under way, in the order in which they began. They move in
/// poll() only, so nothing is touched after end(). Each holds its allocation open, whatever
/// PeerMemory closes meanwhile to open others. Not thread-safe.
class OfferedReads {
 public:
  explicit OfferedReads(hmem::Cuda* cuda) noexcept : x_cuda(cuda) {}
  OfferedReads(const OfferedReads&) = delete;
  OfferedReads& operator=(const OfferedReads&) = delete;
  ~OfferedReads();

  /// `source`: where what was offered is here. -FI_EAGAIN, -FI_EOPNOTSUPP: nothing began.
  int add(const Link& from, const Offer& offer, const std::byte* source, const iovec* memory,
          size_t count, size_t length, uint64_t token) noexcept;
  int poll(Sink& sink) noexcept;
  /// The link is down: on_done(status) for what is left of it.
  void end(const Link& link, Sink& sink, int status) noexcept;
  bool empty() const noexcept { return x_reads.empty(); }

 private:
  struct Read {
    const Link* link;
    hmem::IpcHandle handle;
    const std::byte* source;
    iovec memory[kMaxIov];
    size_t count;
    size_t length;
    uint64_t token;
    size_t done = 0;
  };
  int step(Read& read, size_t bytes) noexcept;
  /// Takes it out of the list; its token.
  uint64_t finish(std::deque<Read>::iterator read) noexcept;

  hmem::Cuda* const x_cuda;
  std::deque<Read> x_reads;
};

}  // namespace erdma::transport::staging
