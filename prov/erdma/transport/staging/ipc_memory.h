#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "hmem/cuda_ipc.h"
#include "transport/transport.h"
#include "util/clock.h"

/// Device memory that a peer of this host maps and reads (by CUDA IPC, or a descriptor that is
/// passed to it), without a copy through host memory. share() offers it; get() refuses it if the
/// driver cannot open it.
namespace erdma::transport::staging {

class StagingLink;

/// The contents of a remote key of KeyKind::ipc.
struct IpcKey {
  hmem::IpcHandle handle;
  uint64_t offset;  ///< bytes into the allocation

  void encode(RemoteKey& remote_key) const noexcept;
  static IpcKey decode(const RemoteKey& remote_key) noexcept;
};

/// Allocations of this process whose files were passed to one peer; the most recently offered ones.
class PassedAllocations {
 public:
  /// Completes the name of memory of Kind::file by the number of a descriptor, and passes the
  /// descriptor to the peer if the peer does not have it. False: the descriptor cannot be passed,
  /// or the peer has too many that it did not use yet.
  bool name(FilePassing& files, hmem::Cuda& cuda, hmem::IpcHandle& handle) noexcept;
  /// The peer answered an offer. `read` is false: the peer may not have the file.
  void answered(const hmem::IpcHandle& handle, bool read) noexcept;
  void clear() noexcept { x_allocations.clear(); }

 private:
  struct Passed {
    hmem::IpcHandle handle;  ///< without the number
    uint32_t number;
    bool answered;
    uint64_t used;  ///< number of the last use; a later use has a higher number
  };
  bool make_room() noexcept;

  std::vector<Passed> x_allocations;
  uint64_t x_uses = 0;
};

/// Offered memory in this process. CUDA may map it anew at another address before it is read.
struct Source {
  hmem::IpcHandle handle;  ///< of the mapping in this process
  uint64_t offset;         ///< bytes into the allocation
};

/// The allocations of one peer that are mapped in this process; the most recently used ones.
/// Without CUDA there are none.
class IpcMappings {
 public:
  explicit IpcMappings(hmem::Cuda* cuda, const util::Clock* clock = nullptr) noexcept
      : x_cuda(cuda), x_clock(clock) {}
  IpcMappings(const IpcMappings&) = delete;
  IpcMappings& operator=(const IpcMappings&) = delete;
  ~IpcMappings() { close(); }

  /// Where the device of `near` finds the offered memory. -FI_EOPNOTSUPP: it cannot be mapped.
  /// -FI_EAGAIN: its file is still on its way over the link, for a second at most.
  util::Result<Source> reach(const IpcKey& key, FilePassing& files, const void* near,
                             size_t length) noexcept;
  void close() noexcept;
  /// Returns -FI_EOPNOTSUPP, and drops the descriptor that came with the offer.
  static int decline(const IpcKey& key, FilePassing& files) noexcept;

 private:
  struct Open {
    hmem::IpcHandle handle;  ///< the peer's
    hmem::IpcHandle here;
    hmem::IpcMemory memory;
    uint64_t used;  ///< later is higher
  };
  util::Result<const Open*> open(const IpcKey& key, FilePassing& files, const void* near) noexcept;
  int open_new(FilePassing& files, const void* near, Open& made) noexcept;
  void make_room(const hmem::IpcHandle& handle) noexcept;
  bool is_late(uint64_t number) noexcept;

  hmem::Cuda* const x_cuda;
  const util::Clock* const x_clock;
  uint64_t x_awaited = 0;        ///< number of a file that has not arrived
  uint64_t x_awaited_since = 0;  ///< 0: no file is awaited
  std::vector<Open> x_open;
  uint64_t x_uses = 0;
};

/// Copies of offered memory under way, in the order in which they began. Only poll() copies, so no
/// memory is touched after end(). Each copy keeps its allocation open, even if IpcMappings closes
/// it to open others. The mapping may end with its CUDA context meanwhile; then poll() makes
/// another one. Not thread-safe.
class IpcReads {
 public:
  explicit IpcReads(hmem::Cuda* cuda) noexcept : x_cuda(cuda) {}
  IpcReads(const IpcReads&) = delete;
  IpcReads& operator=(const IpcReads&) = delete;
  ~IpcReads();

  /// `source`: the offered memory in this process. -FI_EAGAIN, -FI_EOPNOTSUPP: no copy began.
  int add(const Link& from, const Source& source, const void* near, const iovec* memory,
          size_t count, size_t length, uint64_t token) noexcept;
  int poll(Sink& sink) noexcept;
  /// The link is down: calls on_done(status) for each of its copies.
  void end(const Link& link, Sink& sink, int status) noexcept;
  bool empty() const noexcept { return x_reads.empty(); }

 private:
  struct Read {
    const Link* link;
    Source source;
    const void* near;
    iovec memory[kMaxIov];
    size_t count;
    size_t length;
    uint64_t token;
    size_t done = 0;
  };
  int step(Read& read, size_t bytes) noexcept;
  int copy(const Read& read, const std::byte* from, size_t bytes) noexcept;
  /// Removes the copy from the list, and returns its token.
  uint64_t finish(std::deque<Read>::iterator read) noexcept;

  hmem::Cuda* const x_cuda;
  std::deque<Read> x_reads;
};

}  // namespace erdma::transport::staging
