#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "util/result.h"

/// Memory that one side of a link shares, and what the other side needs in order to access it.
namespace erdma::transport {

/// At most this many pieces of memory in send(), share(), get(), put().
inline constexpr size_t kMaxIov = 4;
/// A payload of up to this many bytes fits a packet of any link at any time, as does a RemoteKey
/// with eight bytes besides.
inline constexpr size_t kAlwaysEager = 64;

/// What a remote key names, and so who can use it. Numbers are never used again.
enum class KeyKind : uint8_t {
  none = 0,
  registered = 1,  ///< pieces of memory that a NIC accesses
  bounced = 2,     ///< memory that a NIC can't: its owner moves the bytes as packets ask for it
  region = 3,      ///< a registered or shared region: stays accessible until it is revoked
  readable = 4,    ///< pieces of memory that another process of this host reads
  target = 5,      ///< memory that another process of this host has its owner fill
  ipc = 6,         ///< an allocation of a GPU that another process of this host maps
  own = 7,         ///< memory of the process itself
};

/// How every remote key begins.
struct KeyHead {
  KeyKind kind;
  uint8_t count = 0;  ///< pieces that follow
  uint16_t generation = 0;
  uint32_t index = 0;  ///< with the generation: where its owner finds what it shared
};
static_assert(sizeof(KeyHead) == 8);

/// Names memory that the peer may access: made by share(), carried to the peer in a packet, used
/// there by get() and put(). Opaque to the protocol but for its kind, and never trusted by the
/// transport.
struct RemoteKey {
  static constexpr size_t kMaxBytes = 80;
  uint8_t size = 0;
  std::byte bytes[kMaxBytes];

  KeyKind kind() const noexcept { return size ? KeyKind(bytes[0]) : KeyKind::none; }
  /// Whether get() may refuse it: Access::refusable_read.
  bool is_refusable() const noexcept { return kind() == KeyKind::ipc; }
  /// `body` begins with a KeyHead.
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
  /// As remote_read, for a peer that can say that it can't read this memory: its get() may be
  /// -FI_EOPNOTSUPP.
  refusable_read,
};

/// Memory of this process that peers may access without its help, from RegionRegistrar::open()
/// until this object is destroyed: then the device refuses, and the connection of who still tries
/// is lost.
class RegisteredRegion {
 public:
  virtual ~RegisteredRegion() = default;
  /// What a peer needs to name it in a RemoteRange, over any link of the same transport.
  virtual void describe(RemoteKey& remote_key) const noexcept = 0;
};

/// A part of a peer's memory. Of a region its user has checked that it is one, and for what it is
/// registered or shared: otherwise the device ends the connection.
struct RemoteRange {
  const RemoteKey& memory;
  uint64_t offset;  ///< bytes; of a region only, otherwise 0
  uint64_t length;  ///< bytes; of a region at least 1
};

/// A file that holds device memory: what is named begins `offset` bytes into it. The descriptor is
/// needed during the call only.
struct Dmabuf {
  int fd;
  uint64_t offset;
};

/// Registers memory with a NIC, so that peers access it.
class RegionRegistrar {
 public:
  /// With these rights and no more. -FI_EOPNOTSUPP: this memory can't be registered; -FI_ENOMEM: it
  /// failed this time (both logged). `file` holds device memory; may be null. Throws bad_alloc.
  virtual util::Result<std::unique_ptr<RegisteredRegion>> open(const iovec& memory,
                                                               const Dmabuf* file, bool for_reads,
                                                               bool for_writes) = 0;

 protected:
  ~RegionRegistrar() = default;
};

/// Shares regions with the peer of one link until they are revoked: the peer accesses them without
/// this process's processor.
class RegionSharing {
 public:
  /// Whether share() makes sense now.
  virtual bool possible() const noexcept = 0;
  /// The peer may access this memory from now on. 0, or -FI_EOPNOTSUPP, -FI_ENOMEM.
  [[nodiscard]] virtual int share(const iovec& memory, bool for_reads, bool for_writes,
                                  RemoteKey& remote_key) noexcept = 0;
  /// The peer begins no access to it any more, nor to anything else that was shared over this link
  /// until it has called on_revoked() as often. One may be under way until unused().
  virtual void revoke(const RemoteKey& remote_key) noexcept = 0;
  /// No access of the peer's to what was shared is under way.
  virtual bool unused() noexcept = 0;
  /// The peer called revoke(), and what it named is not accessed any more.
  virtual void on_revoked() noexcept = 0;

 protected:
  ~RegionSharing() = default;
};

/// A registered region of a peer as the device names it: what of a RemoteKey the fast path needs.
struct DeviceAddress {
  uint64_t address = 0;
  uint32_t key = 0;
};

/// Reads and writes registered regions of one peer on the spot, without a queue: 1 to kAlwaysEager
/// bytes, one piece of host memory, and an address that is the caller's to check. Ordered as those
/// of Link are. Anything but 0: nothing happened, and the slow path knows more.
class FastAccess {
 public:
  /// False: `remote` is nothing that it reaches. True: `first` names its first byte.
  virtual bool unpack(const RemoteKey& remote, DeviceAddress& first) noexcept = 0;
  [[nodiscard]] virtual int get(DeviceAddress remote, void* local, size_t length,
                                uint64_t token) noexcept = 0;
  [[nodiscard]] virtual int put(DeviceAddress remote, const void* local, size_t length,
                                uint64_t token) noexcept = 0;

 protected:
  ~FastAccess() = default;
};

/// A peer's registered region, its key unpacked once for the link over which it is accessed.
class RemoteRegion {
 public:
  RemoteRegion() noexcept = default;
  /// `fast` is the link's, may be null, and outlives this.
  RemoteRegion(FastAccess* fast, const RemoteKey& key) noexcept
      : x_fast(fast && fast->unpack(key, x_first) ? fast : nullptr) {}

  /// Whether there is a fast path.
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
