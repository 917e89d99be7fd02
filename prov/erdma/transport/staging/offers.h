#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "hmem/cuda.h"
#include "transport/transport.h"
#include "util/clock.h"

/// Device memory that a peer of this host reads where it is (CUDA IPC, or a descriptor that is
/// handed over): no copy through host memory. Offered by expose(), and refused by read() where the
/// driver can't open it.
namespace erdma::transport::staging {

class StagingLink;

/// What the exposure of an offer holds; its size tells it from all others.
struct Offer {
  hmem::IpcHandle handle;
  uint64_t offset;  ///< bytes into the allocation

  void encode(Exposure& exposure) const noexcept;
  static Offer decode(const Exposure& exposure) noexcept;
};

/// Our allocations of which one peer was handed the files, those that were offered last.
class HandedMemory {
 public:
  /// Completes the name of memory of Kind::file by the number of a descriptor, which the peer is
  /// given if it does not have it. False: it can't be, or the peer has yet to answer for too many.
  bool name(Link& link, hmem::Cuda& cuda, hmem::IpcHandle& handle) noexcept;
  /// The peer is done with an offer. Not `read`: it may not have the file.
  void answered(const hmem::IpcHandle& handle, bool read) noexcept;
  void clear() noexcept { x_handed.clear(); }

 private:
  struct Handed {
    hmem::IpcHandle handle;  ///< without the number
    uint32_t number;
    bool answered;
    uint64_t used;  ///< later is higher
  };
  bool make_room() noexcept;

  std::vector<Handed> x_handed;
  uint64_t x_uses = 0;
};

/// Where offered memory is here.
struct Source {
  hmem::IpcHandle handle;  ///< by which it is open here
  const std::byte* bytes;
};

/// The allocations of one peer that are open here, the most recently used ones. Without CUDA there
/// are none.
class PeerMemory {
 public:
  explicit PeerMemory(hmem::Cuda* cuda, const util::Clock* clock = nullptr) noexcept
      : x_cuda(cuda), x_clock(clock) {}
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory() { close(); }

  /// Where the offered memory is for the device that `near` belongs to. -FI_EOPNOTSUPP: nowhere;
  /// -FI_EAGAIN: its file is still on its way over the link, which it is for a second at most.
  util::Result<Source> reach(const Offer& offer, Link& link, const void* near,
                             size_t length) noexcept;
  void close() noexcept;
  /// -FI_EOPNOTSUPP, and what came with the offer is not kept.
  static int decline(const Offer& offer, Link& link) noexcept;

 private:
  struct Open {
    hmem::IpcHandle handle;  ///< the peer's
    hmem::IpcHandle here;
    hmem::IpcMemory memory;
    uint64_t used;  ///< later is higher
  };
  util::Result<const Open*> open(const Offer& offer, Link& link, const void* near) noexcept;
  int open_new(Link& link, const void* near, Open& made) noexcept;
  void make_room(const hmem::IpcHandle& handle) noexcept;
  bool is_late(uint64_t number) noexcept;

  hmem::Cuda* const x_cuda;
  const util::Clock* const x_clock;
  uint64_t x_awaited = 0;        ///< number of a file that has not come
  uint64_t x_awaited_since = 0;  ///< 0: of none
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
  int add(const Link& from, const Source& source, const void* near, const iovec* memory,
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
