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
/// Returned by Link::get(), and by put() to a region: the bytes have moved, no on_done() follows.
inline constexpr int kDone = 2;

/// Why memory is revoked though the peer has not reported that it is done.
enum class Early : uint8_t {
  refused,  ///< it was shared as refusable, and the peer could not read it
  /// The endpoint closes. The peer may access the memory until Transport::shutdown() returns.
  closing,
};

/// Hint of the caller of Link::send().
enum class SendHint : uint8_t {
  none,
  more,  ///< another send() follows at once: the doorbell can be rung later
  /// More packets of the message follow as soon as there is room, the last one without this hint: a
  /// peer that sleeps need not be woken before.
  unfinished,
};

struct LinkLimits {
  size_t eager;       ///< largest payload of a packet, in bytes; may change between calls
  bool prefers_read;  ///< rendezvous: true: the receiver calls get(); false: the sender put()
  /// For longer messages prefers_packets() is asked even if one packet is enough.
  size_t asks_above = SIZE_MAX;
};

/// Sends packets that can be retracted as long as the peer has not looked at them.
class RetractableSends {
 public:
  /// Returns whether a peer that polls executes an operation on so many bytes faster than this
  /// process could. To be asked for each operation.
  virtual bool suits(size_t length) noexcept = 0;
  /// As Link::send(). Stores the name of the packet in `packet`. -FI_EOPNOTSUPP: not possible now.
  [[nodiscard]] virtual int send(const Header& header, const iovec* payload, size_t count,
                                 size_t length, uint64_t& packet) noexcept = 0;
  /// True: the peer has not looked at the packet. It then gets neither this packet nor later ones
  /// until retracted(), which must follow soon. False: the peer has the packet.
  virtual bool retract(uint64_t packet) noexcept = 0;
  /// Ends a retraction. `executed`: the peer never gets the packet. Otherwise, and if this process
  /// ends before it says so, the peer gets the packet as if there had been no retraction.
  virtual void retracted(uint64_t packet, bool executed) noexcept = 0;
  /// The operation of a packet is over, and was not executed here.
  virtual void ended(uint64_t packet) noexcept = 0;

 protected:
  ~RetractableSends() = default;
};

/// Passes file descriptors to a peer on this host.
class FilePassing {
 public:
  /// Passes the peer a duplicate of `file`. Returns a name, by which a packet can refer to it.
  virtual util::Result<uint32_t> pass(const util::Fd& file) noexcept = 0;
  /// Returns the descriptor that the peer has passed under this name: once, and only while at most
  /// 16 later ones have come. -FI_EAGAIN: it is still on its way, call poll(). -FI_EOPNOTSUPP:
  /// there is no such descriptor.
  virtual util::Result<util::Fd> take(uint32_t name) noexcept = 0;
  /// True: the peer has ended the link, although packets of it may still arrive. The application
  /// of the peer may have freed the memory that was shared over the link.
  virtual bool left() const noexcept = 0;

 protected:
  ~FilePassing() = default;
};

/// Abilities that only some links have. Null: this link lacks it.
struct OptionalInterfaces {
  FastAccess* fast = nullptr;
  RegionRegistrar* registrar = nullptr;
  RegionSharing* sharing = nullptr;
  RetractableSends* retractable = nullptr;
  FilePassing* files = nullptr;
};

/// The state of a link, for users who look for the reason why a process hangs.
struct LinkReport {
  const char* path = "";       ///< self, shm or nic
  const char* state = "";      ///< one word
  uint64_t room = UINT64_MAX;  ///< packets that could be sent now; UINT64_MAX = unknown
};

/// One remote endpoint as one local endpoint sees it. Its transport owns it; it stays valid until
/// the transport is destroyed.
class Link {
 public:
  virtual ~Link() = default;

  /// Sends header and payload (`length` bytes in `count` pieces, at most limits().eager). The
  /// caller may reuse their memory on return. 0: the link has taken the packet, and delivers it
  /// unless it goes down. -FI_EAGAIN: no room or not connected yet, try again after poll().
  /// -FI_ENOMEM: nothing happened, no memory to connect. Any other error: the link is down.
  [[nodiscard]] virtual int send(const Header& header, const iovec* payload, size_t count,
                                 size_t length, SendHint hint) noexcept = 0;
  virtual LinkLimits limits() const noexcept = 0;
  /// Returns whether a message is better sent in packets than by a rendezvous. To be asked before
  /// each that is longer than a packet or LinkLimits::asks_above, and again if it had to wait and
  /// the answer was true. `expected`: the receiver is likely to have posted the receive by then.
  virtual bool prefers_packets(size_t length, bool expected) noexcept {
    return (void)length, (void)expected, false;
  }

  /// Lets the peer access this memory until revoke(). 0, -FI_EAGAIN (nothing happened) or a final
  /// error.
  [[nodiscard]] virtual int share(const iovec* memory, size_t count, size_t length, Access access,
                                  RemoteKey& remote_key) noexcept = 0;
  /// Ends share(). After the return a peer that keeps the rules does not access the memory. A peer
  /// that breaks them is excluded at once by shared memory, but by a NIC only when the registration
  /// ends: a registration in the cache keeps its key. 0, or why the bytes that the peer wrote are
  /// not in the memory.
  virtual int revoke(const RemoteKey& remote_key) noexcept = 0;
  /// revoke() for another reason than that the peer is done.
  virtual void revoke_early(const RemoteKey& remote_key, Early why) noexcept {
    (void)why;
    revoke(remote_key);
  }
  /// Moves bytes of the peer's memory here. 0: on_done(token) follows. kDone: it does not.
  /// -FI_EAGAIN: nothing happened. -FI_EINVAL: the remote key is malformed. -FI_EOPNOTSUPP: this
  /// process cannot use a refusable key.
  ///
  /// A region is accessed without the peer's processor. Accesses of up to kAlwaysEager bytes to
  /// regions are executed in the order of the calls, and their writes before any packet that is
  /// sent later; a write or a packet may overtake a read. For regions the result may also be
  /// -FI_EOPNOTSUPP (not over this link) or -FI_EBUSY (not now). on_done() may report these two
  /// errors for a shared region; then any part of the bytes was moved.
  [[nodiscard]] virtual int get(const RemoteRange& remote, const iovec* local, size_t count,
                                uint64_t token) noexcept = 0;
  /// Moves bytes to the peer's memory; results as get(), but kDone only for a region. With
  /// `until_placed`, for a region, on_done() comes when the peer can see the bytes. Otherwise it
  /// comes when the local memory can be reused, and the bytes arrive before everything that is sent
  /// later.
  [[nodiscard]] virtual int put(const RemoteRange& remote, const iovec* local, size_t count,
                                uint64_t token, bool until_placed) noexcept = 0;

  /// Makes completed writes of the NIC to this memory visible to its owner, a processor or a GPU.
  /// 0: they are visible. kFlushing: on_done(token) follows. Otherwise an error.
  [[nodiscard]] virtual int flush(const iovec* memory, size_t count, uint64_t token) noexcept {
    return (void)memory, (void)count, (void)token, 0;
  }

  /// Ends the link, for example because the peer broke the rules: no further packet of it is
  /// delivered, and on_link_down() with this status follows in a later poll().
  virtual void fail(int status) noexcept = 0;

  /// False: the link never came up, so no packet has travelled on it in either direction.
  virtual bool was_up() const noexcept { return true; }

  /// The application has named this peer as a destination. The peer may then get a right that an
  /// unknown process does not get: to trace this process, where CMA needs it.
  virtual void addressed() noexcept {}

  /// While `on`, a transport that supports it takes no packets of this peer in, so that the peer
  /// runs out of room. May be called from on_packet().
  virtual void hold(bool on) noexcept { (void)on; }

  virtual LinkReport report() noexcept { return {}; }

  /// The abilities of this link. They do not change once the link is in use.
  const OptionalInterfaces& optional() const noexcept { return x_optional; }

  /// Address of the remote endpoint, in canonical form.
  const util::SocketAddress& address() const noexcept { return x_address; }

  /// For the user of the link: the protocol keeps its Peer here. Null at first.
  void* user = nullptr;

 protected:
  explicit Link(const util::SocketAddress& address,
                const OptionalInterfaces& optional = {}) noexcept
      : x_address(address), x_optional(optional) {}
  util::SocketAddress x_address;
  OptionalInterfaces x_optional;
};

}  // namespace erdma::transport
