#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "transport/verbs/connector.h"
#include "transport/verbs/credits.h"
#include "transport/verbs/packet.h"
#include "transport/verbs/resources.h"
#include "transport/verbs/send_queue.h"

namespace erdma::transport::verbs {

/// Why a connection is broken; several of its parts use this text.
inline constexpr const char* kInvalidControlPacket =
    "the peer sent a control packet that makes no sense";

/// What the parts of a connection report to it.
class ConnectionHost {
 public:
  /// Ends the connection: the peer broke a rule, or the device failed.
  virtual void broken(int status, const char* why) noexcept = 0;
  /// Some part waits for credits or room: call progress() soon, in this poll().
  virtual void progress_soon() noexcept = 0;
  /// Some part waits for a block: call progress() as soon as one is free.
  virtual void await_block() noexcept = 0;

 protected:
  ~ConnectionHost() = default;
};

/// The bytes behind the body of a packet: a part of a list.
struct Payload {
  const iovec* memory = nullptr;
  size_t count = 0;
  size_t offset = 0;
  size_t length = 0;
};

/// Control packets that wait for credits or room, in the order in which they are sent.
enum Due : uint8_t {
  kDueGrow = 1,
  kDueRetireNo = 2,
  kDueRetire = 4,    ///< nothing follows, unless the request is taken back
  kDueRetireOk = 8,  ///< likewise, if the peer takes its request back
  kDueBye = 16,      ///< nothing follows
};

/// Which of them wait.
class DuePackets {
 public:
  explicit DuePackets(ConnectionHost& host) noexcept : x_host(host) {}
  bool any() const noexcept { return x_packets; }
  /// Valid if there are any.
  Due first() const noexcept { return Due(x_packets & -x_packets); }
  void add(Due packet) noexcept {
    x_packets |= packet;
    x_host.progress_soon();
  }
  void remove(Due packet) noexcept { x_packets = uint8_t(x_packets & ~packet); }

 private:
  ConnectionHost& x_host;
  uint8_t x_packets = 0;
};

/// The sending side of one connection: decides what may be sent, and in which form (inline, in a
/// chain, from a block). Owns the account of the send queue and the credits.
class PacketSender {
 public:
  /// Places in the send queue that streams leave to packets of the protocol.
  static constexpr uint32_t kPlacesForStreams = 16;
  /// Places in the send queue that only credits and heartbeats may use.
  static constexpr uint32_t kReservedPlaces = 2;

  PacketSender(Resources& shared, ConnectionHost& host) noexcept;
  /// Packets count there from now on.
  void count_in(Counters& counters) noexcept { x_counters = &counters; }
  /// Takes the peer's terms; `window`: receives posted for it. -FI_ECONNRESET: they are invalid.
  [[nodiscard]] int agree(const Terms& peer, uint32_t window) noexcept;
  /// Sends the active side's first packet, on the connector's thread.
  int post_ready() noexcept;

  /// Sends a packet of the protocol. -FI_EAGAIN: nothing happened.
  [[nodiscard]] int send(const Header& header, const iovec* payload, size_t count, size_t length,
                         SendHint hint) noexcept;
  /// Sends any packet. The caller has checked credits and room. -FI_EAGAIN: nothing happened.
  [[nodiscard]] int emit(Kind kind, const void* body, size_t body_bytes,
                         const Payload& payload = {}, SendHint hint = SendHint::none) noexcept;
  size_t eager_limit() const noexcept {
    return x_sent >= x_peer_large_from ? x_peer_large : x_peer_small;
  }
  /// The peer's receives are larger from some packet on. False: `body` is invalid.
  [[nodiscard]] bool on_grow(const std::byte* body, size_t length) noexcept;
  void want_more() noexcept { x_flags |= kWantsMore; }

  /// Posts the chain, whichever connection has one. A request of this connection follows, after
  /// which the application may call nothing more, as its sends in the chain are complete. False:
  /// the chain was this connection's and is lost, the connection is broken, and nothing may follow.
  bool post_chained() noexcept { return !x_shared.chain.owner || post_chain(); }
  void drop_chain() noexcept;
  /// Posts a request (the caller sets its opcode and remote part) that moves the bytes of `piece`
  /// and holds `work`. Errors are those of refused().
  [[nodiscard]] int post(ibv_send_wr& request, ibv_sge piece, const Work& work) noexcept;
  /// The device refused the request that was appended last: takes it back. -FI_EAGAIN: a later
  /// completion makes room. Other errors: the connection is broken.
  int refused(int error) noexcept;
  /// No block is free; returns -FI_EAGAIN.
  int no_block(const BlockPool& pool) noexcept;
  /// True if the device refused the last request for lack of room, and none was posted since.
  bool refused_last() const noexcept {
    return x_refused && x_refused_after == x_queue.latest() && x_queue.outstanding() > 0;
  }

  DuePackets& due() noexcept { return x_due; }
  const DuePackets& due() const noexcept { return x_due; }
  /// The first packet that is due, if it may be sent now.
  bool next_due(Due& packet) const noexcept;
  void touch() noexcept { used = x_shared.polls; }

  SendQueue& queue() noexcept { return x_queue; }
  Credits& credits() noexcept { return x_credits; }

  const uint32_t inline_bytes;
  uint64_t used = 0;  ///< the poll in which the connection last carried a packet

 private:
  int emit_chained(Kind kind, const void* body, size_t body_bytes, const Payload& payload,
                   SendHint hint) noexcept;
  int emit_block(Kind kind, const void* body, size_t body_bytes, const Payload& payload) noexcept;
  size_t build(std::byte* to, Kind kind, const void* body, size_t body_bytes,
               const Payload& payload) noexcept;
  int post_packet(std::byte* to, const BlockPool::Block* block, Kind kind, const void* body,
                  size_t body_bytes, const Payload& payload) noexcept;
  bool post_chain() noexcept;

  Resources& x_shared;
  Counters* x_counters;  ///< those of x_shared until the peer is known
  ConnectionHost& x_host;
  DuePackets x_due{x_host};
  SendQueue x_queue;
  Credits x_credits;
  // The payload that fits into the peer's receives.
  uint32_t x_peer_small = kMinReceiveBytes - kPacketOverhead;
  uint32_t x_peer_large = kMinReceiveBytes - kPacketOverhead;
  uint64_t x_sent = 0;                      ///< packets sent: the number of the next one
  uint64_t x_peer_large_from = UINT64_MAX;  ///< number of the first packet that may be large
  uint8_t x_flags = 0;
  bool x_refused = false;
  uint32_t x_refused_after = 0;  ///< number of the request before the refused one
};

}  // namespace erdma::transport::verbs
