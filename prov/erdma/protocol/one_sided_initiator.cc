// RMA and atomics, where they begin: a Send with a OneSided, in the queues of messages, so that
// fences, limits and the end of a peer mean the same to both.
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "hmem/device_memory.h"
#include "protocol/access.h"

namespace erdma::protocol {
namespace {

wire::OneSidedHeader header_of(const OneSided& op, util::PoolHandle id, uint8_t flags) noexcept {
  return {op.op, flags, id.generation, id.index, op.segments[0]};
}

/// Of a packet, in at most as many pieces as a link takes.
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

/// `packet`: where the name goes of one that can be retracted; null: it need not be.
int send_packet(transport::Link& link, const wire::OneSidedHeader& header, const Payload& payload,
                uint64_t* packet = nullptr) noexcept {
  transport::Header encoded;
  std::memcpy(&encoded, &header, sizeof(encoded));
  if (packet)
    return link.send_retractable(encoded, payload.iov, payload.count, payload.length, *packet);
  return link.send(encoded, payload.iov, payload.count, payload.length, transport::SendHint::none);
}

}  // namespace

int Engine::post_one_sided(const OneSidedArgs& args, CompletionSink* sink) noexcept {
  if (!sink && is_plain(args)) {
    const SendArgs& local = args.local;
    if (post_access({local.destination, local.iov[0].iov_base, local.length,
                     args.segments[0].address, args.segments[0].key, local.context,
                     args.op == wire::Op::read, local.report, local.inject}))
      return 0;
  }
  Peer* peer = x_peers.at(args.local.destination);
  if (!peer || !x_one_sided_setup) return -FI_EINVAL;
  if (++x_sends_since_progress >= kSendsPerProgress) progress();
  if (args.local.inject && args.local.length > x_config.inject_size) return -FI_EMSGSIZE;
  const bool full = sends_full() && !(args.op == wire::Op::read && peer->itself);
  Send* send = full ? nullptr : make_one_sided(args, *peer);
  if (!send) {
    progress();
    return -FI_EAGAIN;
  }
  send->sink = sink;
  return begin(*send);
}

Send* Engine::make_one_sided(const OneSidedArgs& args, Peer& peer) noexcept {
  OneSided* op = x_one_sided.acquire();
  Send* send = op ? make_send(args.local, peer) : nullptr;
  if (!send) {
    if (op) x_one_sided.release(*op);
    return nullptr;
  }
  send->one_sided = op;
  op->op = args.op;
  op->segment_count = uint8_t(args.segment_count);
  std::copy_n(args.segments, args.segment_count, op->segments);
  if (args.segment_count == 0) op->segments[0] = {};
  op->until_placed = args.local.until_delivered;
  if (args.device) [[unlikely]]
    op->device = true;
  const bool reads = args.op == wire::Op::read || args.flags & wire::kFetch;
  const bool atomic = args.op == wire::Op::atomic;
  send->completion_flags = (atomic ? FI_ATOMIC : FI_RMA) | (reads ? FI_READ : FI_WRITE);
  send->wire_flags = args.local.has_data ? wire::kHasData : 0;
  if (!atomic || keep_operands(*send, args)) return send;
  drop_send(*send);
  return nullptr;
}

/// An atomic operation takes a copy of what it was given: that is little, and may have to be sent
/// in parts.
bool Engine::keep_operands(Send& send, const OneSidedArgs& args) noexcept {
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

/// -FI_EAGAIN: what is left to be sent is sent later.
int Engine::launch_one_sided(Send& send) noexcept {
  OneSided& op = *send.one_sided;
  if (overtakes_read(send)) return -FI_EAGAIN;
  if (op.op == wire::Op::atomic) return send_atomic(send);
  if (const int rc = launch_direct(send); rc != -FI_EOPNOTSUPP) return rc;
  if (const int rc = send_segments(send)) return rc;
  const Buffers& memory = send.buffers;
  const bool has_data = send.wire_flags & wire::kHasData;
  const size_t room = send.peer->link->limits().eager;
  const bool fits = memory.length + (has_data ? sizeof(send.data) : 0) <= room &&
                    memory.count + (has_data ? 1 : 0) <= transport::kMaxIov;
  const bool exposed = memory.length > transport::kAlwaysEager && !fits;
  const int rc = send_transfer(send, exposed);
  if (rc == 0) launched(send, exposed);
  return rc;
}

/// Segments but the first go ahead, as one packet has no room for all and an exposure.
int Engine::send_segments(Send& send) noexcept {
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

/// A write or a read. -FI_EAGAIN: nothing happened.
int Engine::send_transfer(Send& send, bool exposed, uint64_t* packet) noexcept {
  transport::Link& link = *send.peer->link;
  const Buffers& memory = send.buffers;
  const bool writes = send.one_sided->op == wire::Op::write;
  uint8_t flags = send.wire_flags;
  if (send.one_sided->segment_count > 1) flags |= wire::kSegments;
  Payload payload;
  std::byte joined[sizeof(send.data) + transport::kAlwaysEager];
  if (flags & wire::kHasData) payload.add(&send.data, sizeof(send.data));
  if (exposed) {
    const auto access = writes ? transport::Access::remote_read : transport::Access::remote_write;
    if (const int rc = link.expose(memory.iov, memory.count, memory.length, access, send.exposure))
      return rc;
    flags |= wire::kExposed;
    payload.add(send.exposure.bytes, send.exposure.size);
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
  const util::PoolHandle id = x_sends.handle(send);
  const int rc = send_packet(link, header_of(*send.one_sided, id, flags), payload, packet);
  // Not kept: what waits may take another link, where the exposure means nothing.
  if (rc != 0 && exposed) {
    link.withdraw(send.exposure);
    send.exposure.size = 0;
  }
  return rc;
}

[[gnu::noinline]] int Engine::gather_from_device(const Buffers& memory, std::byte* to) noexcept {
  return x_config.device_memory->gather(to, memory.iov, memory.count, 0, memory.length);
}

/// All its packets are with the link. What was injected is no longer our debt, unless the target
/// still has to fetch it.
void Engine::launched(Send& send, bool exposed) noexcept {
  if (send.owed && !exposed) {
    send.owed = false;
    --x_injected;
  }
  send.one_sided->way = OneSided::Way::packets;
  ++send.peer->one_sided_packets;
  send.state = Send::State::flying;
  send.peer->flying.push_back(send);
}

// --- atomics ------------------------------------------------------------------------------------

/// In as many packets as it takes: each element is an atomic operation of its own.
int Engine::send_atomic(Send& send) noexcept {
  OneSided& op = *send.one_sided;
  do {
    if (const int rc = send_atomic_part(send)) return rc;
  } while (op.sent < op.count);
  launched(send, false);
  return 0;
}

/// Elements that lie in one segment and fit one packet. -FI_EAGAIN: nothing happened.
int Engine::send_atomic_part(Send& send) noexcept {
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
  const util::PoolHandle id = x_sends.handle(send);
  wire::OneSidedHeader header = header_of(op, id, uint8_t(op.flags | (last ? wire::kLast : 0)));
  wire::AtomicWord word = op.word;
  word.count = uint32_t(left);
  header.segment = {segment->address + into_segment, segment->key, std::bit_cast<uint64_t>(word)};
  const int rc = send_packet(link, header, payload);
  if (rc == 0) op.sent += part;
  return rc;
}

/// The peer is done. What it wrote into device memory here may not be visible yet.
void Engine::settle_send(Send& send, int status) noexcept {
  if (!send.one_sided || !send.one_sided->device || !send.exposure.size ||
      !(send.completion_flags & FI_READ))
    return finish_send(send, status);
  const Buffers& memory = send.buffers;
  transport::Link& link = *send.peer->link;
  const int rc = link.withdraw(send.exposure);
  send.exposure.size = 0;
  if (status == 0) status = rc;
  if (status == 0) {
    send.state = Send::State::writing;
    status = link.settle(memory.iov, memory.count, token_of(x_sends.handle(send)) | kWriteToken);
    if (status == transport::kSettling) return;
  }
  finish_send(send, status);
}

// --- answers ------------------------------------------------------------------------------------

/// Bytes that were read or fetched: they come in order, and the last ones end the operation.
void Engine::on_result(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                       const std::byte* payload, size_t length) noexcept {
  Send* send = x_sends.find({header.index, header.generation});
  if (!inbound::takes(link, inbound::judge_result(send, peer, length),
                      "more than what was to be read"))
    return;
  OneSided& op = *send->one_sided;
  const Buffers& memory = send->buffers;
  if (!op.device)
    hmem::scatter(memory.iov, memory.count, op.received, payload, length);
  else if (const int rc = x_config.device_memory->scatter(memory.iov, memory.count, op.received,
                                                          payload, length))
    return finish_send(*send, rc);
  op.received += length;
  if (op.received == send->buffers.length && send->state == Send::State::flying)
    finish_send(*send, 0);
}

}  // namespace erdma::protocol
