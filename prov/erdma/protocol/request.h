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

/// Operations in flight. All live in pools of one Engine, from post to completion.
namespace erdma::protocol {

class CompletionSink;
class Controls;
class Initiator;
class Peer;
struct Grant;

/// The operation whose transfer a link reports as done: which kind it is, and its pool handle.
enum class TokenOf : uint8_t { access, send, delivery, service };

constexpr uint64_t make_token(TokenOf kind, util::PoolHandle handle) noexcept {
  return uint64_t(handle.index) | uint64_t(handle.generation) << 32 | uint64_t(kind) << 48;
}

/// For the completion of a received message.
inline uint64_t data_flag(const wire::MessageHeader& header) noexcept {
  return header.flags & wire::kHasData ? FI_REMOTE_CQ_DATA : 0;
}

/// The caller's memory for one operation.
struct Buffers {
  size_t count = 0;
  size_t length = 0;
  iovec iov[transport::kMaxIov];
};

/// An operation that needs room on its peer's link. It is in at most one list of its peer.
class Pending : public util::ListHook<Pending> {
 public:
  /// 0: it is under way, or over. -FI_EAGAIN: nothing happened, the link has no room. Else it can't
  /// be done, and finish() is to follow.
  virtual int start() noexcept = 0;
  /// Ends it, and tells whoever waits for it.
  virtual void finish(int status) noexcept = 0;

 protected:
  ~Pending() = default;
};

template <typename Operation>
using PendingList = util::IntrusiveList<Operation, Pending>;

/// Starts what waits for room, in order. False: the link is full again.
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
  bool device = false;        ///< some of the memory here is not the host's
  bool by_packets = false;    ///< it is under way, packets carry it
  bool interrupted = false;   ///< it was under way directly, and is not to be again
  Grant* grant = nullptr;     ///< under way directly, which uses this
  uint64_t packet = 0;        ///< that can be retracted; 0 = there is none

  // Atomics. Operands, then what to compare with, lie in the Send's copy or in `small`.
  uint8_t flags = 0;  ///< wire::kFetch, wire::kCompare
  bool with_operands = false;
  wire::AtomicWord word{};
  size_t element = 0;  ///< bytes
  size_t count = 0;    ///< elements
  size_t sent = 0;     ///< elements
  std::byte small[64];
};

/// A message or an RMA operation that could not be handed to the link at once, or that waits for
/// the peer.
struct Send final : Pending {
  enum class State : uint8_t {
    queued,     ///< in Peer::queued: not on the wire yet
    in_flight,  ///< in Peer::flying: eager, rts or request sent, waits for cts or fin
    granted,    ///< in Peer::queued: cts arrived, the link has no room for put() yet
    writing,    ///< in Peer::flying: the link moves the bytes
  };

  int start() noexcept override;
  void finish(int status) noexcept override;

  Initiator* initiator = nullptr;  ///< what carries it out
  Peer* peer = nullptr;
  OneSided* one_sided = nullptr;  ///< RMA or atomic, not a message
  Buffers buffers;
  std::unique_ptr<std::byte[]> copy;  ///< FI_INJECT: the message; buffers point into it
  uint64_t tag = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t completion_flags = 0;
  transport::RemoteKey remote_key;  ///< our memory, size 0 = none; granted: the receiver's
  wire::RequestId receiver{};       ///< of the cts, named again in done
  size_t granted = 0;               ///< bytes that the receiver has room for
  State state = State::queued;
  uint8_t wire_flags = 0;
  bool rendezvous = false;
  bool fence = false;   ///< stays queued until nothing of its peer is flying
  bool report = false;  ///< write a CQ entry
  bool injected = false;
  bool owed = false;  ///< injected, and still in the caller's debt: Engine::has_injected()
  CompletionSink* sink = nullptr;  ///< where it completes
};

/// Of a message to a multi-receive buffer that its sender, or the endpoint that received it, gave
/// up. FI_ECANCELED says of such a buffer that the application cancelled it.
inline constexpr int kMessageGivenUp = FI_ECONNABORTED;

/// A posted receive. Leaves the matcher when it matches, unless it is a multi-receive buffer.
/// One of one buffer and for one message needs two cache lines of it: what comes first.
struct Receive : PostedEntry {
  enum Special : uint8_t { kMulti = 1, kDevice = 2, kElsewhere = 4 };

  bool report = false;
  uint8_t special = 0;     ///< of Special: what the fast path of a message does not know
  bool posted = false;     ///< in the matcher
  bool exhausted = false;  ///< multi-receive: off the matcher, waits for its deliveries
  bool held = false;       ///< multi-receive: someone will look at it again, exhausted or not
  uint64_t completion_flags = 0;
  Buffers buffers;
  union {
    size_t used = 0;       ///< multi-receive: bytes handed out
    CompletionSink* sink;  ///< completes elsewhere; no multi-receive
  };
  uint32_t deliveries = 0;  ///< multi-receive: messages still being placed
  int ended = 0;            ///< multi-receive: why it ends early; reported after its messages

  bool multi() const noexcept { return special & kMulti; }
  bool device() const noexcept { return special & kDevice; }
  CompletionSink& sink_or(CompletionSink& usual) const noexcept {
    return special & kElsewhere ? *sink : usual;
  }
};
static_assert(sizeof(Receive) == 192);

/// A message that arrived before its receive.
struct Unexpected : UnexpectedEntry {
  static constexpr size_t kInline = 64;

  wire::MessageHeader header{};
  Peer* peer = nullptr;                  ///< who sent it
  transport::Link* link = nullptr;       ///< on which it came
  uint64_t source_address = UINT64_MAX;  ///< fi_addr_t at arrival
  void* claimed_by = nullptr;            ///< context of FI_PEEK|FI_CLAIM
  Unexpected* next_claimed = nullptr;
  transport::RemoteKey remote_key;  ///< rts
  int status = 0;                   ///< the sender died before its bytes could be fetched
  std::unique_ptr<std::byte[]> heap;
  std::byte small[kInline];

  const std::byte* payload() const noexcept { return heap ? heap.get() : small; }
};

/// A small write or read that is with the device already: all that is left is its end. One cache
/// line, with what its pool keeps.
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
  Send* concluded = nullptr;  ///< completes when the packet has left
};

}  // namespace erdma::protocol
