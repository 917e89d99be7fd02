#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "util/result.h"

/// Memory that one side of a link shares, and the keys by which the other side accesses it.
namespace erdma::transport {

/// Most pieces of memory in send(), share(), get() and put().
inline constexpr size_t kMaxIov = 4;
/// A payload of up to this many bytes fits a packet of any link at any time. So does a RemoteKey
/// together with eight bytes.
inline constexpr size_t kAlwaysEager = 64;

/// The kind of memory that a remote key names. A number of a removed kind is never used again.
enum class KeyKind : uint8_t {
  none = 0,
  registered = 1,  ///< pieces of memory that a NIC accesses
  bounced = 2,     ///< memory that a NIC cannot access: its owner moves the bytes on request
  region = 3,      ///< a registered or shared region: accessible until it is revoked
  readable = 4,    ///< pieces of memory that another process of this host reads
  target = 5,      ///< memory that its owner fills with bytes of another process of this host
  ipc = 6,         ///< an allocation of a GPU that another process of this host maps
  own = 7,         ///< memory of the process itself
};

/// The first bytes of every remote key.
struct KeyHead {
  KeyKind kind;
  uint8_t count = 0;  ///< pieces that follow; kind `readable` uses the highest bit
  uint16_t generation = 0;
  uint32_t index = 0;  ///< with `generation`: identifies the shared memory to its owner
};
static_assert(sizeof(KeyHead) == 8);

/// Names memory that the peer may access. share() makes it, a packet carries it to the peer, and
/// get() and put() of the peer use it. The protocol looks only at its kind. A transport never
/// trusts a key that a peer has sent.
struct RemoteKey {
  static constexpr size_t kMaxBytes = 80;
  uint8_t size = 0;
  std::byte bytes[kMaxBytes];

  KeyKind kind() const noexcept { return size ? KeyKind(bytes[0]) : KeyKind::none; }
  /// Returns whether get() may refuse it: Access::refusable_read.
  bool is_refusable() const noexcept { return kind() == KeyKind::ipc; }
  /// Sets the key to `body`, which begins with a KeyHead.
  template <typename Body>
  void put(const Body& body, size_t length = sizeof(Body)) noexcept {
    static_assert(sizeof(Body) <= kMaxBytes);
    size = uint8_t(length);
    std::memcpy(bytes, &body, length);
  }
};

enum class Access : uint8_t {
  remote_read,
  remote_write,
  /// As remote_read, but the peer may find that it cannot read this memory: its get() may return
  /// -FI_EOPNOTSUPP.
  refusable_read,
};

/// Memory of this process that peers may access without its processor, from RegionRegistrar::open()
/// until this object is destroyed. After that the device refuses accesses, and a peer that still
/// tries one loses its connection.
class RegisteredRegion {
 public:
  virtual ~RegisteredRegion() = default;
  /// Makes the key by which a peer accesses the region, over any link of the same transport.
  virtual void describe(RemoteKey& remote_key) const noexcept = 0;
};

/// A part of a peer's memory. For a region the caller has checked that the range lies in it and
/// that the access is permitted; otherwise the device ends the connection.
struct RemoteRange {
  const RemoteKey& memory;
  uint64_t offset;  ///< bytes; 0 unless `memory` is a region
  uint64_t length;  ///< bytes; at least 1 for a region
};

/// A file that holds device memory, from byte `offset` on. The descriptor is needed during the call
/// only.
struct Dmabuf {
  int fd;
  uint64_t offset;
};

/// Registers memory with a NIC, so that peers can access it.
class RegionRegistrar {
 public:
  /// Registers the memory with exactly these rights. `file` holds device memory, or is null.
  /// -FI_EOPNOTSUPP: this memory cannot be registered; -FI_ENOMEM: it failed this time (both are
  /// logged). Throws std::bad_alloc.
  virtual util::Result<std::unique_ptr<RegisteredRegion>> open(const iovec& memory,
                                                               const Dmabuf* file, bool for_reads,
                                                               bool for_writes) = 0;

 protected:
  ~RegionRegistrar() = default;
};

/// Shares regions with the peer of one link until they are revoked. The peer accesses them without
/// the processor of this process.
class RegionSharing {
 public:
  /// Returns whether share() can work now.
  virtual bool possible() const noexcept = 0;
  /// Lets the peer access this memory from now on. 0, -FI_EOPNOTSUPP or -FI_ENOMEM.
  [[nodiscard]] virtual int share(const iovec& memory, bool for_reads, bool for_writes,
                                  RemoteKey& remote_key) noexcept = 0;
  /// After the return the peer begins no access to this memory. It also begins none to other memory
  /// that was shared over this link, until it has called on_revoked() once for each revoke(). An
  /// access that began before may be under way until unused().
  virtual void revoke(const RemoteKey& remote_key) noexcept = 0;
  /// True: the peer is not accessing memory that was shared over this link.
  virtual bool unused() noexcept = 0;
  /// The peer has called revoke(), and this process begins no more accesses to the memory that it
  /// named.
  virtual void on_revoked() noexcept = 0;

 protected:
  ~RegionSharing() = default;
};

/// A registered region of a peer as the device names it: the part of a RemoteKey that the fast path
/// needs.
struct DeviceAddress {
  uint64_t address = 0;
  uint32_t key = 0;
};

/// Reads and writes registered regions of one peer without a queue: 1 to kAlwaysEager bytes, from
/// or to one piece of host memory. The caller checks the address. The accesses are ordered as those
/// of Link. Any result but 0: nothing happened; the slow path finds out why.
class FastAccess {
 public:
  /// True: `first` names the first byte of `remote`. False: this link cannot access `remote`.
  virtual bool unpack(const RemoteKey& remote, DeviceAddress& first) noexcept = 0;
  [[nodiscard]] virtual int get(DeviceAddress remote, void* local, size_t length,
                                uint64_t token) noexcept = 0;
  [[nodiscard]] virtual int put(DeviceAddress remote, const void* local, size_t length,
                                uint64_t token) noexcept = 0;

 protected:
  ~FastAccess() = default;
};

/// A peer's registered region, with its key unpacked for the link over which it is accessed.
class RemoteRegion {
 public:
  RemoteRegion() noexcept = default;
  /// `fast` belongs to the link and outlives this object; it may be null.
  RemoteRegion(FastAccess* fast, const RemoteKey& key) noexcept
      : x_fast(fast && fast->unpack(key, x_first) ? fast : nullptr) {}

  /// True: there is a fast path.
  explicit operator bool() const noexcept { return x_fast != nullptr; }
  int get(uint64_t offset, void* local, size_t length, uint64_t token) const noexcept {
    return x_fast->get({x_first.address + offset, x_first.key}, local, length, token);
  }
  int put(uint64_t offset, const void* local, size_t length, uint64_t token) const noexcept {
    return x_fast->put({x_first.address + offset, x_first.key}, local, length, token);
  }

 private:
  DeviceAddress x_first;
  FastAccess* x_fast = nullptr;
};

}  // namespace erdma::transport
