#include "protocol/rma_initiator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "hmem/device_memory.h"
#include "protocol/inbound.h"

namespace erdma::protocol {
namespace {

wire::OneSidedHeader header_of(const OneSided& op, util::PoolHandle id, uint8_t flags) noexcept {
  return {op.op, flags, id.generation, id.index, op.segments[0]};
}

/// The payload of a packet, in at most kMaxIov pieces.
struct Payload {
  iovec iov[transport::kMaxIov];
  size_t count = 0;
  size_t length = 0;

  void set(const void* bytes, size_t size) noexcept {
    count = length = 0;
    add(bytes, size);
  }
  void add(const void* bytes, size_t size) noexcept {
    if (size == 0) return;
    iov[count++] = {const_cast<void*>(bytes), size};
    length += size;
  }
};

/// With `packet` sends a retractable packet and stores its name there. The link must support it.
int send_packet(transport::Link& link, const wire::OneSidedHeader& header, const Payload& payload,
                uint64_t* packet = nullptr) noexcept {
  transport::Header encoded;
  std::memcpy(&encoded, &header, sizeof(encoded));
  if (packet)
    return link.optional().retractable->send(encoded, payload.iov, payload.count, payload.length,
                                             *packet);
  return link.send(encoded, payload.iov, payload.count, payload.length, transport::SendHint::none);
}

/// Returns whether the operation is small enough to be ordered: fi_ep_attr::max_order_*_size.
bool is_ordered(const Send& send) noexcept {
  return send.buffers.length <= transport::kAlwaysEager;
}

/// Returns whether the operation must wait for direct reads under way. A NIC may execute a later
/// WRITE before an earlier READ (FI_ORDER_WAR), and the target may execute a later packet before it
/// (also FI_ORDER_RAR). `by_packets`: packets carry the operation; an atomic one always needs them.
bool overtakes_read(const Send& send, bool by_packets) noexcept {
  const PeerGrants* const grants = send.peer->grants.get();
  if (!grants || grants->reads == 0) return false;
  const wire::Op op = send.one_sided->op;
  return op == wire::Op::atomic || ((by_packets || op == wire::Op::write) && is_ordered(send));
}

}  // namespace

bool RmaInitiator::post(const OneSidedArgs& args, Peer& peer, CompletionSink* sink) noexcept {
  const bool reads = args.op == wire::Op::read || args.flags & wire::kFetch;
  const bool atomic = args.op == wire::Op::atomic;
  CompletionSink& usual = reads ? x_setup->reads : x_setup->writes;
  OneSided* const op = x_operations.acquire();
  Send* const send = op ? sends.make(args.local, peer, *this, sink ? *sink : usual) : nullptr;
  if (!send) {
    if (op) x_operations.release(*op);
    return false;
  }
  send->one_sided = op;
  op->op = args.op;
  op->segment_count = uint8_t(args.segment_count);
  std::copy_n(args.segments, args.segment_count, op->segments);
  if (args.segment_count == 0) op->segments[0] = {};
  op->until_placed = args.local.until_delivered;
  if (args.device) [[unlikely]]
    op->device = true;
  send->completion_flags = (atomic ? FI_ATOMIC : FI_RMA) | (reads ? FI_READ : FI_WRITE);
  send->wire_flags = args.local.has_data ? wire::kHasData : 0;
  const bool complete = !atomic || keep_operands(*send, args);
  if (complete)
    sends.begin(*send);
  else
    sends.drop(*send);
  return complete;
}

/// Copies the operands of an atomic operation. They are small, and may have to be sent in parts.
bool RmaInitiator::keep_operands(Send& send, const OneSidedArgs& args) noexcept {
  OneSided& op = *send.one_sided;
  op.flags = args.flags;
  op.word = args.word;
  op.element = args.element;
  op.count = args.count;
  op.with_operands = args.operand_count > 0;
  const size_t bytes = args.count * args.element;
  const size_t operands = args.operand_count ? bytes : 0;
  const size_t compares = args.compare_count ? bytes : 0;
  std::byte* to = op.small;
  if (operands + compares > sizeof(op.small)) {
    send.copy.reset(new (std::nothrow) std::byte[operands + compares]);
    if (!send.copy) return false;
    to = send.copy.get();
  }
  hmem::gather(to, args.operands, args.operand_count, 0, operands);
  hmem::gather(to + operands, args.compares, args.compare_count, 0, compares);
  return true;
}

/// -FI_EAGAIN: the packets that are not sent yet are sent later.
int RmaInitiator::launch(Send& send) noexcept {
  OneSided& op = *send.one_sided;
  if (overtakes_read(send, false)) return -FI_EAGAIN;
  if (op.op == wire::Op::atomic) return send_atomic(send);
  if (const int rc = launch_direct(send); rc != -FI_EOPNOTSUPP) return rc;
  if (overtakes_read(send, true)) return -FI_EAGAIN;
  if (const int rc = send_segments(send)) return rc;
  const Buffers& memory = send.buffers;
  const bool has_data = send.wire_flags & wire::kHasData;
  const size_t room = send.peer->link->limits().eager;
  const bool fits = memory.length + (has_data ? sizeof(send.data) : 0) <= room &&
                    memory.count + (has_data ? 1 : 0) <= transport::kMaxIov;
  const bool shared = memory.length > transport::kAlwaysEager && !fits;
  const int rc = send_transfer(send, shared);
  if (rc == 0) launched(send, shared);
  return rc;
}

/// Sends all segments but the first in a packet of their own: one packet has no room for all
/// segments and a remote key.
int RmaInitiator::send_segments(Send& send) noexcept {
  OneSided& op = *send.one_sided;
  if (op.segment_count <= 1 || op.segments_sent) return 0;
  wire::OneSidedHeader header{};
  header.op = wire::Op::segments;
  Payload payload;
  payload.add(&op.segments[1], (op.segment_count - 1) * sizeof(wire::Segment));
  const int rc = send_packet(*send.peer->link, header, payload);
  op.segments_sent = rc == 0;
  return rc;
}

int RmaInitiator::send_transfer(Send& send, bool shared, uint64_t* packet) noexcept {
  transport::Link& link = *send.peer->link;
  const Buffers& memory = send.buffers;
  const bool writes = send.one_sided->op == wire::Op::write;
  uint8_t flags = send.wire_flags;
  if (send.one_sided->segment_count > 1) flags |= wire::kSegments;
  Payload payload;
  std::byte joined[sizeof(send.data) + transport::kAlwaysEager];
  if (flags & wire::kHasData) payload.add(&send.data, sizeof(send.data));
  if (shared) {
    const auto access = writes ? transport::Access::remote_read : transport::Access::remote_write;
    if (const int rc = link.share(memory.iov, memory.count, memory.length, access, send.remote_key))
      return rc;
    flags |= wire::kKeyed;
    payload.add(send.remote_key.bytes, send.remote_key.size);
  } else if (writes && memory.length <= transport::kAlwaysEager) {
    std::memcpy(joined, &send.data, payload.length);
    std::byte* const rest = joined + payload.length;
    if (send.one_sided->device) [[unlikely]] {
      if (const int rc = gather_from_device(memory, rest)) return rc;
    } else {
      hmem::gather(rest, memory.iov, memory.count, 0, memory.length);
    }
    payload.set(joined, payload.length + memory.length);
  } else if (writes) {
    for (size_t i = 0; i < memory.count; ++i)
      payload.add(memory.iov[i].iov_base, memory.iov[i].iov_len);
  }
  const util::PoolHandle id = sends.id(send);
  const int rc = send_packet(link, header_of(*send.one_sided, id, flags), payload, packet);
  // The key is not kept: the send may move to another link, where it is not valid.
  if (rc != 0 && shared) {
    link.revoke(send.remote_key);
    send.remote_key.size = 0;
  }
  return rc;
}

[[gnu::noinline]] int RmaInitiator::gather_from_device(const Buffers& memory,
                                                       std::byte* to) noexcept {
  return x_devices->gather(to, memory.iov, memory.count, 0, memory.length);
}

/// An injected operation has left this process, unless the target still has to read its bytes.
void RmaInitiator::launched(Send& send, bool shared) noexcept {
  if (!shared) sends.clear_inject_pending(send);
  send.one_sided->by_packets = true;
  ++send.peer->one_sided_packets;
  sends.fly(send);
}

// --- atomics ------------------------------------------------------------------------------------

/// Sends as many packets as needed. Only each element is atomic, so an operation can be split.
int RmaInitiator::send_atomic(Send& send) noexcept {
  OneSided& op = *send.one_sided;
  do {
    if (const int rc = send_atomic_part(send)) return rc;
  } while (op.sent < op.count);
  launched(send, false);
  return 0;
}

/// Sends the next elements that lie in one segment and fit one packet. -FI_EAGAIN: nothing
/// happened.
int RmaInitiator::send_atomic_part(Send& send) noexcept {
  transport::Link& link = *send.peer->link;
  OneSided& op = *send.one_sided;
  size_t into_segment = op.sent * op.element;
  const wire::Segment* segment = op.segments;
  while (into_segment >= segment->length && segment < op.segments + op.segment_count - 1)
    into_segment -= (segment++)->length;
  const size_t left = (segment->length - into_segment) / op.element;
  const size_t operands = op.with_operands ? 1 : 0, compares = op.flags & wire::kCompare ? 1 : 0;
  const size_t each = (operands + compares) * op.element;
  const size_t room = std::max(transport::kAlwaysEager, link.limits().eager);
  const size_t part = each ? std::min(left, room / each) : left;
  const std::byte* bytes = send.copy ? send.copy.get() : op.small;
  Payload payload;
  if (operands) payload.add(bytes + op.sent * op.element, part * op.element);
  if (compares)
    payload.add(bytes + (operands * op.count + op.sent) * op.element, part * op.element);
  const bool last = op.sent + part == op.count;
  const util::PoolHandle id = sends.id(send);
  wire::OneSidedHeader header = header_of(op, id, uint8_t(op.flags | (last ? wire::kLast : 0)));
  wire::AtomicWord word = op.word;
  word.count = uint32_t(left);
  header.segment = {segment->address + into_segment, segment->key, wire::reread<uint64_t>(word)};
  const int rc = send_packet(link, header, payload);
  if (rc == 0) op.sent += part;
  return rc;
}

/// The peer has executed the operation. Bytes that its NIC wrote into device memory here may have
/// to be flushed.
void RmaInitiator::on_device_fin(Send& send, int status) noexcept {
  if (!send.one_sided->device || !send.remote_key.size || !(send.completion_flags & FI_READ))
    return sends.finish(send, status);
  const Buffers& memory = send.buffers;
  transport::Link& link = *send.peer->link;
  const int rc = link.revoke(send.remote_key);
  send.remote_key.size = 0;
  if (status == 0) status = rc;
  if (status == 0) {
    send.state = Send::State::writing;
    status = link.flush(memory.iov, memory.count, sends.token(send));
    if (status == transport::kFlushing) return;
  }
  sends.finish(send, status);
}

// --- direct access ------------------------------------------------------------------------------

Grant* RmaInitiator::usable_grant(const Send& send) noexcept {
  const OneSided& op = *send.one_sided;
  const wire::Segment& segment = op.segments[0];
  const size_t length = send.buffers.length;
  if (op.interrupted || op.op == wire::Op::atomic || op.segment_count != 1 ||
      send.wire_flags & wire::kHasData || segment.length != length)
    return nullptr;
  // An empty read by an endpoint from itself may be meant as a flush.
  const bool flushes = op.op == wire::Op::read && x_devices && send.peer->itself;
  if (length == 0 && !flushes) [[unlikely]]
    return nullptr;
  Grant* const grant = x_grants.permitting(*send.peer, op.op, segment);
  return grant && (length > 0 || grant->flushes) ? grant : nullptr;
}

/// -FI_EOPNOTSUPP: use packets. -FI_EAGAIN: nothing happened.
int RmaInitiator::launch_direct(Send& send) noexcept {
  Grant* const grant = usable_grant(send);
  if (!grant) return -FI_EOPNOTSUPP;
  const int rc = x_retractables.launch(send);
  if (rc == 0) grant->fresh = false;  // no packet that the operation could overtake is in flight
  return rc == -FI_EOPNOTSUPP ? access(send, *grant) : rc;
}

int access_directly(Send& send, const Grant& grant, bool until_placed) noexcept {
  const wire::Segment& segment = send.one_sided->segments[0];
  const transport::RemoteRange remote{grant.memory, segment.address - grant.address,
                                      segment.length};
  const Buffers& memory = send.buffers;
  transport::Link& link = *send.peer->link;
  const uint64_t token = send.initiator->sends.token(send);
  return send.one_sided->op == wire::Op::read
             ? link.get(remote, memory.iov, memory.count, token)
             : link.put(remote, memory.iov, memory.count, token, until_placed);
}

int RmaInitiator::access(Send& send, Grant& grant) noexcept {
  Peer& peer = *send.peer;
  OneSided& op = *send.one_sided;
  // The target executes operations in packets when it polls, so a direct access could overtake
  // them. With a grant that was not used yet the operation waits for the packets in flight, once;
  // later, an operation that follows packets uses a packet, too.
  if (is_ordered(send) && peer.one_sided_packets > 0)
    return grant.fresh || grant.flushes ? -FI_EAGAIN : -FI_EOPNOTSUPP;
  if (send.buffers.length == 0) read_one_byte(send, grant);
  const int rc = access_directly(send, grant, op.until_placed);
  if (rc == -FI_EBUSY) return -FI_EOPNOTSUPP;
  if (rc == -FI_EOPNOTSUPP || rc == -FI_EINVAL) {  // the grant is for another link, or malformed
    (op.op == wire::Op::read ? grant.reads : grant.writes) = false;
    return -FI_EOPNOTSUPP;
  }
  if (rc != 0 && rc != transport::kDone) return rc;
  grant.fresh = false;
  if (rc == transport::kDone) {
    sends.finish(send, 0);
    return 0;
  }
  ++grant.users;
  op.grant = &grant;
  if (op.op == wire::Op::read && is_ordered(send)) ++peer.grants->reads;
  sends.move(send);
  return 0;
}

/// The link cannot continue a direct access: packets repeat the whole operation.
void RmaInitiator::retry(Send& send, int status) noexcept {
  OneSided& op = *send.one_sided;
  if (status == -FI_EOPNOTSUPP)
    (op.op == wire::Op::read ? op.grant->reads : op.grant->writes) = false;
  leave_grant(send);
  op.interrupted = true;
  send.unlink();
  send.state = Send::State::queued;
  sends.queue_first(send);
}

/// An empty READ orders nothing. The read fetches one byte of the region instead, and drops it.
void RmaInitiator::read_one_byte(Send& send, const Grant& grant) noexcept {
  wire::Segment& segment = send.one_sided->segments[0];
  segment.address = std::min(segment.address, grant.address + grant.length - 1);
  segment.length = send.buffers.length = 1;
  send.buffers.count = 1;
  send.buffers.iov[0] = {&x_flush_sink, 1};
}

// --- the end ------------------------------------------------------------------------------------

void RmaInitiator::on_moved(Send& send, int status) noexcept {
  const bool interrupted = status == -FI_EBUSY || status == -FI_EOPNOTSUPP;
  if (send.one_sided->grant && interrupted) [[unlikely]]
    return retry(send, status);
  sends.finish(send, status);
}

void RmaInitiator::leave_grant(Send& send) noexcept {
  OneSided& op = *send.one_sided;
  if (op.op == wire::Op::read && is_ordered(send)) --send.peer->grants->reads;
  x_grants.leave(*send.peer, *std::exchange(op.grant, nullptr));
}

void RmaInitiator::forget(Send& send) noexcept {
  OneSided& op = *send.one_sided;
  if (op.by_packets) --send.peer->one_sided_packets;
  if (op.packet) RetractableRma::forget(send);
  if (op.grant) leave_grant(send);
  x_operations.release(op);
}

/// Results come in order, and the last one ends the operation.
void RmaInitiator::on_result(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                             const std::byte* payload, size_t length) noexcept {
  Send* send = sends.find({header.index, header.generation});
  if (!inbound::takes(link, inbound::judge_result(send, peer, length),
                      "more than what was to be read"))
    return;
  OneSided& op = *send->one_sided;
  const Buffers& memory = send->buffers;
  if (const int rc = hmem::scatter(op.device ? x_devices : nullptr, memory.iov, memory.count,
                                   op.received, payload, length))
    return sends.finish(*send, rc);
  op.received += length;
  if (op.received == send->buffers.length && send->state == Send::State::in_flight)
    sends.finish(*send, 0);
}

}  // namespace erdma::protocol
