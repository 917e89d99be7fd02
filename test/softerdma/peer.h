#pragma once

#include <sys/uio.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "softerdma/fabric.h"
#include "softerdma/mapping.h"
#include "softerdma/posted.h"
#include "softerdma/shared.h"

namespace softerdma {

/// A completion queue of a peer, as producers see it.
struct RemoteCq {
  Mapping map;
  int event_fd = -1;  ///< the pipe of its completion channel
  uint32_t owner = 0;
  RemoteCq() = default;
  RemoteCq(const RemoteCq&) = delete;
  RemoteCq& operator=(const RemoteCq&) = delete;
  ~RemoteCq();
  CqShared& shared() const noexcept { return *map.as<CqShared>(); }
};

/// One generation of a process of the fabric, possibly this one. It is made on first contact.
/// Connections hold shared pointers to it.
class PeerProcess {
 public:
  PeerProcess(uint32_t its_slot, uint32_t its_generation)
      : slot(its_slot), generation(its_generation) {}
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess();

  /// Opens the shared files. Returns false if the process is gone.
  bool attach(Fabric& fabric);
  std::shared_ptr<RemoteCq> cq(Fabric& fabric, uint32_t number);

  /// Copies between this process and the peer without its help. Returns 0 or a positive errno:
  /// EFAULT if an address is not mapped, ESRCH if the peer is gone, another one if the kernel
  /// refuses.
  int write(const iovec* local, size_t count, uint64_t remote, size_t length) noexcept;
  int read(void* local, uint64_t remote, size_t length) noexcept;
  /// Works like write(), also if the peer is this process and the memory may be unmapped.
  int place(const void* local, uint64_t remote, size_t length) noexcept;
  /// Returns the posted stores of the peer's n-th adapter, or null if there is none.
  PostedShared* posted(Fabric& fabric, uint32_t adapter);
  /// Returns the entry of a key if it covers the range, has all of `access` and belongs to `pd`.
  const MrEntry* find(uint32_t key, uint64_t address, uint64_t length, uint32_t access,
                      uint32_t pd) noexcept;
  /// Queues the message while the peer's pipe is full. flush() then tries again, and returns false
  /// if the peer is gone.
  void send(const Message& message);
  bool flush();

  const uint32_t slot;
  const uint32_t generation;
  int pidfd = -1;
  bool watched = false;  ///< the thread watches pidfd
  std::atomic<bool> dead{false};

 private:
  int transfer(bool to_peer, const iovec* local, size_t count, uint64_t remote,
               size_t length) noexcept;
  int through_file(bool to_peer, const iovec* local, size_t count, uint64_t remote) noexcept;

  bool x_self = false;
  bool x_foreign_pids = false;
  std::atomic<bool> x_refused{false};  ///< the kernel refused process_vm_*, so x_memory is used
  int x_pid = 0;
  int x_wake = -1;
  std::atomic<int> x_memory{-1};  ///< descriptor of /proc/pid/mem
  Mapping x_mrs;
  std::mutex x_mutex;  ///< guards the members below
  std::map<uint32_t, std::weak_ptr<RemoteCq>> x_cqs;
  Mapping x_posted[kDevicesPerProcess];
  std::deque<Message> x_queued;
};

}  // namespace softerdma
