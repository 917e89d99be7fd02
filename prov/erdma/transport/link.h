#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include <rdma/fi_errno.h>

#include "transport/memory.h"
#include "util/fd.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::transport {

/// Every packet starts with a header of exactly this many bytes, opaque to transports.
inline constexpr size_t kHeaderBytes = 32;
struct alignas(8) Header {
  std::byte bytes[kHeaderBytes];
};

/// Returned by Link::flush().
inline constexpr int kFlushing = 1;
/// Answer of Link::get(), put() of a region: it is over, no on_done() follows.
inline constexpr int kDone = 2;

/// What send() may assume.
enum class SendHint : uint8_t {
  none,
  more,  ///< the caller will send more at once: a doorbell may wait
};

struct LinkLimits {
  size_t eager;       ///< largest payload of one packet now; may grow or shrink between calls
  bool prefers_read;  ///< rendezvous: the receiver get()s (else the sender put()s)
};

/// Sends packets that can be taken back as long as the peer has not looked at them.
class RetractableSends {
 public:
  /// As Link::send(); `packet` names the packet. -FI_EOPNOTSUPP: not now.
  [[nodiscard]] virtual int send(const Header& header, const iovec* payload, size_t count,
                                 size_t length, uint64_t& packet) noexcept = 0;
  /// True: the peer has not looked at it, and gets nothing that was sent after it until
  /// retracted(): soon. False: the peer has it.
  virtual bool retract(uint64_t packet) noexcept = 0;
  /// `executed`: the peer never gets it. Otherwise as if nothing had happened.
  virtual void retracted(uint64_t packet, bool executed) noexcept = 0;

 protected:
  ~RetractableSends() = default;
};

/// Passes descriptors to a peer of this host.
class FilePassing {
 public:
  /// Gives the peer a descriptor of what `file` is open for, and it a name for a packet to tell.
  virtual util::Result<uint32_t> pass(const util::Fd& file) noexcept = 0;
  /// What the peer handed over by this name: once, and not after 16 later ones. -FI_EAGAIN: it is
  /// still on its way, poll(); -FI_EOPNOTSUPP: it can't be had.
  virtual util::Result<util::Fd> take(uint32_t name) noexcept = 0;
  /// The peer gave the link up, though what it sent may not be delivered yet: what it had shared
  /// is its owner's again.
  virtual bool left() const noexcept = 0;

 protected:
  ~FilePassing() = default;
};

/// What a link can do that not every link can. Null: this one can't.
struct OptionalInterfaces {
  FastAccess* fast = nullptr;
  RegionRegistrar* registrar = nullptr;
  RegionSharing* sharing = nullptr;
  RetractableSends* retractable = nullptr;
  FilePassing* files = nullptr;
};

/// What a link looks like now, for those who look at a process that stands still.
struct LinkReport {
  const char* path = "";       ///< self, shm or nic
  const char* state = "";      ///< a word
  uint64_t room = UINT64_MAX;  ///< packets that could be sent now; UINT64_MAX = unknown
};

/// One remote endpoint as seen from one local endpoint. Owned by its transport; stays valid until
/// the transport is destroyed.
class Link {
 public:
  virtual ~Link() = default;

  /// Sends header and payload (`length` bytes in `count` pieces, at most limits().eager), copying
  /// both before it returns. 0 = taken, and out of this process's memory or bound to leave it;
  /// -FI_EAGAIN = no room or not connected yet, try after poll(); else the link is down or broken.
  [[nodiscard]] virtual int send(const Header& header, const iovec* payload, size_t count,
                                 size_t length, SendHint hint) noexcept = 0;
  virtual LinkLimits limits() const noexcept = 0;

  /// Lets the peer access this memory until revoke(). 0, -FI_EAGAIN or a final error.
  [[nodiscard]] virtual int share(const iovec* memory, size_t count, size_t length, Access access,
                                  RemoteKey& remote_key) noexcept = 0;
  /// After return a peer that keeps the rules touches the memory no more; one that breaks them is
  /// kept out by shared memory, but by a NIC only once the registration goes: a cached one keeps
  /// its key. 0, or why what the peer wrote is not in it.
  virtual int revoke(const RemoteKey& remote_key) noexcept = 0;
  /// revoke() of an offer that the peer could not take.
  virtual void revoke_refused(const RemoteKey& remote_key) noexcept { revoke(remote_key); }
  /// Moves bytes of the peer's memory here. 0 = on_done(token) will follow; -FI_EAGAIN; -FI_EINVAL
  /// for a malformed remote key; -FI_EOPNOTSUPP for a refusable one that this process can't use.
  /// A region is accessed without the peer's processor. Up to kAlwaysEager bytes of regions are
  /// accessed in the order of these calls, and written before any packet that is sent later; a
  /// write or a packet may overtake a read. Of regions also kDone; -FI_EOPNOTSUPP: not over this
  /// link; -FI_EBUSY: not now. on_done() may say both of a shared region: then any part of the
  /// bytes was moved.
  [[nodiscard]] virtual int get(const RemoteRange& remote, const iovec* local, size_t count,
                                uint64_t token) noexcept = 0;
  /// Moves bytes from here there. `until_placed`, of a region: on_done() comes once the peer can
  /// see the bytes, not before. Otherwise it comes once this process's memory is free and the bytes
  /// are bound to be there ahead of what follows.
  [[nodiscard]] virtual int put(const RemoteRange& remote, const iovec* local, size_t count,
                                uint64_t token, bool until_placed) noexcept = 0;

  /// The device may have written to this memory, and all of that is complete: lets the processor,
  /// or whatever the memory belongs to, see it. 0 = it does; kFlushing = on_done(token) will
  /// follow.
  [[nodiscard]] virtual int flush(const iovec* memory, size_t count, uint64_t token) noexcept {
    return (void)memory, (void)count, (void)token, 0;
  }

  /// The peer broke the protocol's rules: nothing more is delivered from it, and on_link_down()
  /// with this status follows in a later poll().
  virtual void fail(int status) noexcept = 0;

  /// False = it never was up, so that no packet of either side ever went over it.
  virtual bool was_up() const noexcept { return true; }

  /// The application itself named this peer, so it may have what a stranger may not: the right to
  /// trace this process, where CMA needs that.
  virtual void addressed() noexcept {}

  /// While on, a transport that can leaves what the peer sends where it is: the peer finds no more
  /// room. May be called from on_packet().
  virtual void hold(bool on) noexcept { (void)on; }

  virtual LinkReport report() noexcept { return {}; }

  /// What this link can do that not every link can. It does not change once the link is used.
  const OptionalInterfaces& optional() const noexcept { return x_optional; }

  /// Name of the remote endpoint, in canonical form.
  const util::SocketAddress& address() const noexcept { return x_address; }

  /// The protocol's peer; null until it sets it.
  void* user = nullptr;

 protected:
  explicit Link(const util::SocketAddress& address,
                const OptionalInterfaces& optional = {}) noexcept
      : x_address(address), x_optional(optional) {}
  util::SocketAddress x_address;
  OptionalInterfaces x_optional;
};

}  // namespace erdma::transport
