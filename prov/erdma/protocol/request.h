#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include <rdma/fabric.h>

#include "protocol/match.h"
#include "protocol/pending.h"
#include "protocol/wire.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

/// Operations in flight. All live in pools of one Engine, from post to completion.
namespace erdma::protocol {

class CompletionSink;
class Controls;
class Peer;
struct OneSided;

/// Token of a read() or write(): the pool handle of its Delivery, or of its Send, Service or Access
/// with one of these bits.
inline constexpr uint64_t kWriteToken = uint64_t(1) << 63;
inline constexpr uint64_t kServiceToken = uint64_t(1) << 62;
inline constexpr uint64_t kAccessToken = uint64_t(1) << 61;

inline uint64_t token_of(util::PoolHandle handle) noexcept {
  return uint64_t(handle.index) | uint64_t(handle.generation) << 32;
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

/// A send that could not be handed to the link at once, or that waits for the receiver.
struct Send : util::ListHook<Send> {
  enum class State : uint8_t {
    queued,   ///< in Peer::queued: not on the wire yet
    flying,   ///< in Peer::flying: eager or rts sent, waits for cts or fin
    granted,  ///< in Peer::queued: cts arrived, the link has no room for write() yet
    writing,  ///< in Peer::flying: write() into the receiver's memory accepted
  };

  Peer* peer = nullptr;
  OneSided* one_sided = nullptr;  ///< RMA or atomic, not a message
  Buffers buffers;
  std::unique_ptr<std::byte[]> copy;  ///< FI_INJECT: the message; buffers point into it
  uint64_t tag = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t completion_flags = 0;
  transport::Exposure exposure;  ///< our memory, size 0 = none; granted: the receiver's
  wire::RequestId receiver{};    ///< of the cts, named again in done
  size_t granted = 0;            ///< bytes that the receiver has room for
  State state = State::queued;
  uint8_t wire_flags = 0;
  bool rendezvous = false;
  bool fence = false;   ///< stays queued until nothing of its peer is flying
  bool report = false;  ///< write a CQ entry
  bool injected = false;
  bool owed = false;               ///< injected, and still in the caller's debt: Engine::owes()
  CompletionSink* sink = nullptr;  ///< where it completes; null: where those of its kind do
};

/// A posted receive. Leaves the matcher when it matches, unless it is a multi-receive buffer.
/// One of one buffer and for one message needs two cache lines of it: what comes first.
struct Receive : PostedEntry {
  enum Special : uint8_t { kMulti = 1, kDevice = 2, kElsewhere = 4 };

  bool report = false;
  uint8_t special = 0;     ///< of Special: what the short way of a message does not know
  bool posted = false;     ///< in the matcher
  bool exhausted = false;  ///< multi-receive: off the matcher, waits for its deliveries
  bool cancelled = false;
  bool held = false;  ///< multi-receive: someone will look at it again, exhausted or not
  uint64_t completion_flags = 0;
  Buffers buffers;
  union {
    size_t used = 0;       ///< multi-receive: bytes handed out
    CompletionSink* sink;  ///< completes elsewhere; no multi-receive
  };
  uint32_t deliveries = 0;  ///< multi-receive: messages still being placed

  bool multi() const noexcept { return special & kMulti; }
  bool device() const noexcept { return special & kDevice; }
  CompletionSink& sink_or(CompletionSink& usual) const noexcept {
    return special & kElsewhere ? *sink : usual;
  }
};
static_assert(sizeof(Receive) == 192);

/// A matched rendezvous message while its bytes move.
struct Delivery : util::ListHook<Delivery> {
  enum class State : uint8_t {
    starting,  ///< link had no room for read() or expose(): retried by progress()
    reading,   ///< read() accepted
    granted,   ///< cts sent, waits for done
    settling,  ///< all bytes are moved, the link makes them visible
  };

  Peer* peer = nullptr;
  transport::Link* link = nullptr;  ///< on which the rts came; null: settling, its sender is gone
  Receive* multi = nullptr;         ///< the multi-receive buffer it belongs to
  Buffers buffers;                  ///< what to fill: no longer than the message
  size_t message_length = 0;
  uint64_t tag = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t completion_flags = 0;
  wire::RequestId sender{};
  transport::Exposure remote;      ///< the sender's memory; size 0 = it writes
  transport::Exposure local;       ///< our memory, granted
  CompletionSink* sink = nullptr;  ///< where it completes
  State state = State::starting;
  bool report = false;
  bool device = false;  ///< some of `buffers` is not host memory
};

/// A message that arrived before its receive.
struct Unexpected : UnexpectedEntry {
  static constexpr size_t kInline = 64;

  wire::MessageHeader header{};
  Peer* peer = nullptr;                  ///< who sent it
  transport::Link* link = nullptr;       ///< on which it came
  uint64_t source_address = UINT64_MAX;  ///< fi_addr_t at arrival
  void* claimed_by = nullptr;            ///< context of FI_PEEK|FI_CLAIM
  Unexpected* next_claimed = nullptr;
  transport::Exposure exposure;  ///< rts
  int status = 0;                ///< the sender died before its bytes could be fetched
  std::unique_ptr<std::byte[]> heap;
  std::byte small[kInline];

  const std::byte* payload() const noexcept { return heap ? heap.get() : small; }
};

/// A control packet that the link had no room for.
struct Control final : Pending {
  int start() noexcept override;
  void finish(int status) noexcept override;

  Controls* controls = nullptr;
  Peer* peer = nullptr;
  wire::ControlHeader header{};
  transport::Exposure exposure;
};

}  // namespace erdma::protocol
