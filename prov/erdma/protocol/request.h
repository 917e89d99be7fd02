#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/match.h"
#include "protocol/wire.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

/// Operations in flight. They live in pools of one Engine, from post to completion.
namespace erdma::protocol {

class CompletionSink;
class Controls;
class Initiator;
class Peer;
struct Arrival;
struct Delivery;
struct Grant;

/// A token of Sink::on_done() holds the kind of the operation and its pool handle.
enum class TokenOf : uint8_t { access, send, delivery, service };

constexpr uint64_t make_token(TokenOf kind, util::PoolHandle handle) noexcept {
  return handle.number() | uint64_t(kind) << 48;
}

/// Returns FI_REMOTE_CQ_DATA, for the completion of a received message, if it has such data.
inline uint64_t data_flag(const wire::MessageHeader& header) noexcept {
  return header.flags & wire::kHasData ? FI_REMOTE_CQ_DATA : 0;
}

/// The application's memory for one operation.
struct Buffers {
  size_t count = 0;
  size_t length = 0;
  iovec iov[transport::kMaxIov];
};

/// An operation that may have to wait for room on the peer's link. It is in at most one list of its
/// peer.
class Pending : public util::ListHook<Pending> {
 public:
  /// 0: the operation is under way, or over. -FI_EAGAIN: nothing happened, the link has no room.
  /// After any other error the caller calls finish().
  virtual int start() noexcept = 0;
  /// Ends the operation and reports its status: to the application, to the peer, or to both.
  virtual void finish(int status) noexcept = 0;

 protected:
  ~Pending() = default;
};

template <typename Operation>
using PendingList = util::IntrusiveList<Operation, Pending>;

/// Starts the operations that wait for room, in order. False: the link is full again.
template <typename Operation>
bool start_all(PendingList<Operation>& waiting) noexcept {
  while (Operation* next = waiting.front()) {
    waiting.erase(*next);
    const int rc = next->start();
    if (rc == -FI_EAGAIN) {
      waiting.push_front(*next);
      return false;
    }
    if (rc != 0) next->finish(rc);
  }
  return true;
}

/// The initiator's side of a one-sided Send.
struct OneSided {
  wire::Op op = wire::Op::write;
  uint8_t segment_count = 0;
  bool segments_sent = false;
  wire::Segment segments[transport::kMaxIov];
  size_t received = 0;        ///< bytes of the result
  bool until_placed = false;  ///< FI_DELIVERY_COMPLETE
  bool device = false;        ///< part of the memory here is device memory
  bool by_packets = false;    ///< packets of the operation are in flight
  bool interrupted = false;   ///< direct access failed midway: use packets
  Grant* grant = nullptr;     ///< used by the direct access under way
  uint64_t packet = 0;        ///< names the packet that can be retracted; 0 = there is none

  // Atomics. The operands, then the values to compare with, lie in the Send's copy or in `small`.
  uint8_t flags = 0;  ///< wire::kFetch, wire::kCompare
  bool with_operands = false;
  wire::AtomicWord word{};
  size_t element = 0;  ///< bytes
  size_t count = 0;    ///< elements of the operation
  size_t sent = 0;     ///< elements in the packets sent so far
  std::byte small[64];
};

/// A message or a one-sided operation that waits for room on the link or for the peer.
struct Send final : Pending {
  enum class State : uint8_t {
    queued,     ///< in Peer::queued: not all packets are sent
    in_flight,  ///< in Peer::in_flight: eager, rts or request sent; waits for cts or fin
    granted,    ///< in Peer::queued: the cts has arrived; the link has no room for put() yet
    writing,    ///< in Peer::in_flight: the link moves the bytes
    written,    ///< in Peer::in_flight: the done is sent; waits for the fin (FI_DELIVERY_COMPLETE)
  };

  int start() noexcept override;
  void finish(int status) noexcept override;

  Initiator* initiator = nullptr;  ///< carries the send out
  Peer* peer = nullptr;
  OneSided* one_sided = nullptr;  ///< null: the send is a message
  Buffers buffers;
  std::unique_ptr<std::byte[]> copy;  ///< FI_INJECT: the bytes, `buffers` points there; or operands
  uint64_t tag = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t completion_flags = 0;
  transport::RemoteKey remote_key;  ///< shared memory here (size 0: none); granted: the receiver's
  wire::RequestId receiver{};       ///< from the cts; names the delivery in done
  size_t granted = 0;               ///< bytes for which the receiver has room
  size_t sent = 0;                  ///< bytes of a message that fragments have taken
  State state = State::queued;
  uint8_t wire_flags = 0;
  bool rendezvous = false;
  bool asked_for_rendezvous = false;  ///< the link, when the message was posted
  bool fence = false;                 ///< stays queued until no operation to the peer is in flight
  bool report = false;                ///< write a CQ entry
  bool injected = false;
  bool inject_pending = false;     ///< injected, and no link has taken it yet (has_injected())
  CompletionSink* sink = nullptr;  ///< where the operation completes
};

/// The error of an operation that the other side gave up, and of a message to a multi-receive
/// buffer that the receiving endpoint gave up. FI_ECANCELED would mean that the application has
/// cancelled the operation or the buffer, which MPI libraries do not count as a failure.
inline constexpr int kGivenUp = FI_ECONNABORTED;

/// The status with which an operation ends whose transfer, or whose peer, ended with this one.
constexpr int outcome_of(int status) noexcept {
  return status == -FI_ECANCELED ? -kGivenUp : status;
}

/// A posted receive. Leaves the matcher when it matches, unless it is a multi-receive buffer. A
/// receive with one buffer, for one message, uses only the first two cache lines.
struct Receive : PostedEntry {
  enum Special : uint8_t { kMulti = 1, kDevice = 2, kElsewhere = 4 };

  bool report = false;
  uint8_t special = 0;     ///< bits of Special: properties that the fast path cannot handle
  bool posted = false;     ///< in the matcher
  bool exhausted = false;  ///< multi-receive: off the matcher, waits for its deliveries
  bool held = false;       ///< multi-receive: Receives::accept() still uses it, do not release it
  uint64_t completion_flags = 0;
  Buffers buffers;
  union {
    size_t used = 0;       ///< multi-receive: bytes given to messages
    CompletionSink* sink;  ///< kElsewhere: where the receive completes; never multi-receive
  };
  uint32_t deliveries = 0;  ///< multi-receive: messages in progress
  int ended = 0;            ///< multi-receive: why it ends early; reported after its messages

  bool multi() const noexcept { return special & kMulti; }
  bool device() const noexcept { return special & kDevice; }
  CompletionSink& sink_or(CompletionSink& usual) const noexcept {
    return special & kElsewhere ? *sink : usual;
  }
};
static_assert(sizeof(Receive) == 192);

/// A message that arrived before a matching receive was posted.
struct Unexpected : UnexpectedEntry {
  static constexpr size_t kInline = 64;

  wire::MessageHeader header{};
  Peer* peer = nullptr;             ///< the sender
  transport::Link* link = nullptr;  ///< the link on which the message came
  void* claimed_by = nullptr;       ///< context of FI_PEEK|FI_CLAIM
  Unexpected* next_claimed = nullptr;
  transport::RemoteKey remote_key;  ///< of an rts
  Arrival* arrival = nullptr;       ///< not null: only a part of the bytes is here
  int status = 0;                   ///< not 0: the sender is gone, and the bytes with it
  std::unique_ptr<std::byte[]> heap;
  std::byte small[kInline];

  /// All bytes are here.
  bool is_whole() const noexcept { return header.op == wire::Op::eager && !arrival && status == 0; }
  const std::byte* payload() const noexcept { return heap ? heap.get() : small; }
  std::byte* payload() noexcept { return heap ? heap.get() : small; }
};

/// A small write or read that the NIC has taken and has yet to complete. It fits one cache line,
/// together with the members of its pool.
struct Access : util::ListHook<Access> {
  Peer* peer;
  Grant* grant;
  void* context;
  bool reads;
  bool report;  ///< write a CQ entry
  bool injected;
};

/// A control packet that the link had no room for.
struct Control final : Pending {
  int start() noexcept override;
  void finish(int status) noexcept override;

  Controls* controls = nullptr;
  Peer* peer = nullptr;
  wire::ControlHeader header{};
  transport::RemoteKey remote_key;
  Send* concluded = nullptr;  ///< send that completes when the link takes the packet, or null
  /// Operation of the peer that is over once the link takes the packet or fails, or null.
  Pending* answered = nullptr;
};

}  // namespace erdma::protocol
