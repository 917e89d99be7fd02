#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include <rdma/fi_errno.h>

#include "util/fd.h"
#include "util/result.h"
#include "util/socket_address.h"

/// The seam between how a message becomes packets and how bytes move. A transport knows no tags and
/// no fids; the protocol knows no rings and no queue pairs.
///
/// Rules that every transport keeps (test/transport/conformance_test.cc holds them to it):
///  - single-threaded: the caller serialises all calls on a Transport and its Links;
///  - no upcall from within send(), share(), read(), write(): results arrive in poll() only;
///  - packets of one link arrive whole, once, in the order of send();
///  - each accepted read()/write(), direct or not, ends in exactly one on_done(), on_link_down()
///  included: the
///    transport reports those first;
///  - on_link_down() is called once per established or attempted link, after every packet that
///    reached this process was delivered. A later send() may find the link connecting anew.
namespace erdma::transport {

class Link;

/// Every packet starts with a header of exactly this many bytes, opaque to transports.
inline constexpr size_t kHeaderBytes = 32;
/// At most this many pieces of memory in send(), share(), read(), write().
inline constexpr size_t kMaxIov = 4;
/// A payload of up to this many bytes fits a packet of any link at any time, as does a RemoteKey
/// with eight bytes besides.
inline constexpr size_t kAlwaysEager = 64;

struct alignas(8) Header {
  std::byte bytes[kHeaderBytes];
};

/// Names memory that the peer may read or write: made by share(), carried to the peer in a packet,
/// used there by read()/write(). Opaque to the protocol and never trusted by the transport.
struct RemoteKey {
  static constexpr size_t kMaxBytes = 80;
  /// Of this size are those of Access::offer that read() may refuse, and no other.
  static constexpr size_t kRefusableBytes = 76;
  uint8_t size = 0;
  std::byte bytes[kMaxBytes];

  bool is_refusable() const noexcept { return size == kRefusableBytes; }
};

enum class Access : uint8_t {
  remote_read,
  remote_write,
  /// As remote_read, for a peer that can say that it can't read this memory: its read() may be
  /// -FI_EOPNOTSUPP.
  refusable_read,
};

/// Memory of this process that peers may access without its help, from Link::open() on until this
/// object is destroyed: then the device refuses, and the connection of who still tries is lost.
class RegisteredRegion {
 public:
  virtual ~RegisteredRegion() = default;
  /// What a peer needs to name it in a RemoteRange, over any link of the same transport.
  virtual void describe(RemoteKey& remote_key) const noexcept = 0;
};

/// A part of a peer's open memory: whoever names it has checked that it is one, and for what it is
/// open, as the device ends the connection else.
struct RemoteRange {
  const RemoteKey& memory;  ///< as its owner described it
  uint64_t offset;          ///< bytes
  uint64_t length;          ///< bytes, at least 1
};

/// Open memory of a peer as the device names it: what of a RemoteKey the fast path needs.
struct DeviceAddress {
  uint64_t address = 0;
  uint32_t key = 0;
};

/// Returned by Link::flush().
inline constexpr int kFlushing = 1;
/// Answer of Link::read_direct(), write_direct(): it is over, no on_done() follows.
inline constexpr int kDone = 2;

/// What send() may assume.
enum class SendHint : uint8_t {
  none,
  more,  ///< the caller will send more at once: a doorbell may wait
};

struct LinkLimits {
  size_t eager;       ///< largest payload of one packet now; may grow or shrink between calls
  bool prefers_read;  ///< rendezvous: the receiver read()s (else the sender write()s)
};

/// Upcalls of poll(); implemented by protocol::Engine.
class Sink {
 public:
  /// `header` (kHeaderBytes) and `payload` (`length` bytes) may lie in memory that the peer can
  /// change at any time: copy the header before looking at it. Both valid until return.
  virtual void on_packet(Link& link, const std::byte* header, const std::byte* payload,
                         size_t length) noexcept = 0;
  /// An accepted read() or write() is over: all its bytes are in place (0) or some are not.
  virtual void on_done(uint64_t token, int status) noexcept = 0;
  /// The peer is gone: -FI_ESHUTDOWN = it closed its endpoint in order; -FI_ECONNRESET = it died or
  /// broke the rules; -FI_ECONNREFUSED, -FI_EHOSTUNREACH, -FI_ETIMEDOUT, ... = never reached.
  virtual void on_link_down(Link& link, int status) noexcept = 0;
  /// Operations wait for something that only this peer can send. Asked where a link has no
  /// connection, so that nobody would notice the peer's death.
  virtual bool waits_for(const Link&) noexcept { return false; }
  /// Asked where several packets wait in a row: knowing what comes next would save time.
  virtual bool wants_previews() const noexcept { return false; }
  /// `header` is that of the packet after the one that on_packet() is about to bring. The peer can
  /// still change it: a hint for what to fetch into the cache, and nothing else.
  virtual void on_preview(Link&, const std::byte* header) noexcept { (void)header; }

 protected:
  ~Sink() = default;
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
  /// Moves `length` bytes from the start of the peer's shared memory here, or from here there.
  /// 0 = on_done(token) will follow; -FI_EAGAIN; -FI_EINVAL for a malformed remote key;
  /// -FI_EOPNOTSUPP for an offer that this process can't take.
  [[nodiscard]] virtual int read(const RemoteKey& remote, const iovec* local, size_t count,
                                 size_t length, uint64_t token) noexcept = 0;
  [[nodiscard]] virtual int write(const RemoteKey& remote, const iovec* local, size_t count,
                                  size_t length, uint64_t token) noexcept = 0;

  /// The device may have written to this memory, and all of that is complete: lets the processor,
  /// or whatever the memory belongs to, see it. 0 = it does; kFlushing = on_done(token) will
  /// follow.
  [[nodiscard]] virtual int flush(const iovec* memory, size_t count, uint64_t token) noexcept {
    return (void)memory, (void)count, (void)token, 0;
  }

  /// Gives the peer a descriptor of what `file` is open for, and it a name for a packet to tell.
  /// -FI_EOPNOTSUPP: not over this link; else why not now.
  virtual util::Result<uint32_t> pass_file(const util::Fd& file) noexcept {
    return (void)file, -FI_EOPNOTSUPP;
  }
  /// What the peer handed over by this name: once, and not after 16 later ones. -FI_EAGAIN: it is
  /// still on its way, poll(); -FI_EOPNOTSUPP: it can't be had.
  virtual util::Result<util::Fd> take_file(uint32_t name) noexcept {
    return (void)name, -FI_EOPNOTSUPP;
  }

  /// Whether open() and direct access exist here.
  virtual bool registers_regions() const noexcept { return false; }
  /// Null: this memory can't be opened.
  virtual std::unique_ptr<RegisteredRegion> register_region(const iovec& memory, bool for_reads,
                                                            bool for_writes) noexcept {
    return (void)memory, (void)for_reads, (void)for_writes, nullptr;
  }

  /// Whether share_region() and direct access exist here.
  virtual bool shares_regions() const noexcept { return false; }
  /// The peer may access this memory directly from now on. 0, or -FI_EOPNOTSUPP, -FI_ENOMEM.
  [[nodiscard]] virtual int share_region(const iovec& memory, bool for_reads, bool for_writes,
                                         RemoteKey& remote_key) noexcept {
    return (void)memory, (void)for_reads, (void)for_writes, (void)remote_key, -FI_EOPNOTSUPP;
  }
  /// The peer begins no access to it any more, nor to anything else that was shared over this link
  /// until it has called region_revoked() as often. One may be under way until regions_unused().
  virtual void revoke_region(const RemoteKey& remote_key) noexcept { (void)remote_key; }
  /// No access of the peer's to what was shared is under way.
  virtual bool regions_unused() noexcept { return true; }
  /// The peer called revoke_region(), and what it named is not accessed any more.
  virtual void region_revoked() noexcept {}

  /// Like read() and write(), without the peer's processor, in memory that it registered or shared.
  /// Of up to kAlwaysEager bytes they are executed in the order of these calls, a write also before
  /// any packet that is sent later; a write or a packet may overtake a read. -FI_EOPNOTSUPP: not
  /// over this link; -FI_EBUSY: not now. on_done() may say the same of a shared region: then any
  /// part of the bytes was moved.
  [[nodiscard]] virtual int read_direct(const RemoteRange& remote, const iovec* local, size_t count,
                                        uint64_t token) noexcept {
    return (void)remote, (void)local, (void)count, (void)token, -FI_EOPNOTSUPP;
  }
  /// `until_placed`: on_done() comes once the peer can see the bytes, not before; else once this
  /// process's memory is free and the bytes are bound to be there ahead of what follows.
  [[nodiscard]] virtual int write_direct(const RemoteRange& remote, const iovec* local,
                                         size_t count, uint64_t token, bool until_placed) noexcept {
    return (void)remote, (void)local, (void)count, (void)token, (void)until_placed, -FI_EOPNOTSUPP;
  }

  /// send() of a packet that can be taken back as long as the peer has not looked at it; `packet`
  /// names it. -FI_EOPNOTSUPP: not over this link, or not now.
  [[nodiscard]] virtual int send_retractable(const Header& header, const iovec* payload,
                                             size_t count, size_t length,
                                             uint64_t& packet) noexcept {
    return (void)header, (void)payload, (void)count, (void)length, (void)packet, -FI_EOPNOTSUPP;
  }
  /// True: the peer has not looked at it, and gets nothing that was sent after it until
  /// retracted(): soon. False: the peer has it.
  virtual bool retract(uint64_t packet) noexcept { return (void)packet, false; }
  /// `executed`: the peer never gets it. Else as if nothing had happened.
  virtual void retracted(uint64_t packet, bool executed) noexcept { (void)packet, (void)executed; }

  /// False: no fast path there. True: `first` names the first byte of that open memory.
  virtual bool resolve(const RemoteKey& memory, DeviceAddress& first) noexcept {
    return (void)memory, (void)first, false;
  }
  /// The fast path of read_direct() and write_direct(), without `until_placed`: 1 to kAlwaysEager
  /// bytes, one piece of host memory, and an address that is the caller's to check. Anything but 0:
  /// nothing happened, and the slow path knows more.
  [[nodiscard]] virtual int read_fast(DeviceAddress remote, void* local, size_t length,
                                      uint64_t token) noexcept {
    return (void)remote, (void)local, (void)length, (void)token, -FI_EOPNOTSUPP;
  }
  [[nodiscard]] virtual int write_fast(DeviceAddress remote, const void* local, size_t length,
                                       uint64_t token) noexcept {
    return (void)remote, (void)local, (void)length, (void)token, -FI_EOPNOTSUPP;
  }

  /// The peer broke the protocol's rules: nothing more is delivered from it, and on_link_down()
  /// with this status follows in a later poll().
  virtual void fail(int status) noexcept = 0;

  /// The peer gave the link up, though what it sent may not be delivered yet: what it had shared
  /// is its owner's again.
  virtual bool left() const noexcept { return false; }

  /// False = it never was up, so that no packet of either side ever went over it.
  virtual bool was_up() const noexcept { return true; }

  /// The application itself named this peer, so it may have what a stranger may not: the right to
  /// trace this process, where CMA needs that.
  virtual void addressed() noexcept {}

  /// While on, a transport that can leaves what the peer sends where it is: the peer finds no more
  /// room. May be called from on_packet().
  virtual void hold(bool on) noexcept { (void)on; }

  /// Name of the remote endpoint, in canonical form.
  const util::SocketAddress& address() const noexcept { return x_address; }

  /// The protocol's peer; null until it sets it.
  void* user = nullptr;

 protected:
  explicit Link(const util::SocketAddress& address) noexcept : x_address(address) {}
  util::SocketAddress x_address;
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// Moves everything that can move; upcalls go to `sink`. Returns the number of upcalls and of
  /// other steps forward (0 = nothing happened). Bounded work per call.
  virtual int poll(Sink& sink) noexcept = 0;
  /// The link to a remote endpoint: a new or the existing one. Does not block: the connection is
  /// made in the background once something is sent.
  virtual util::Result<Link*> link_to(const util::SocketAddress& address) noexcept = 0;

  /// Sleeping: wait_fd() becomes readable when poll() has work, provided that arm() returned true
  /// after the last poll(). False = there is work already. -1 = this transport never needs waking.
  virtual int wait_fd() const noexcept = 0;
  virtual bool arm() noexcept = 0;
  virtual void disarm() noexcept = 0;

  /// Says goodbye to every peer. Packets taken by send() are still delivered to living peers.
  virtual void shutdown() noexcept = 0;
};

}  // namespace erdma::transport
