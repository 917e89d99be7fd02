#include "transport/verbs/packet_transfers.h"

#include <algorithm>
#include <cstring>

#include "hmem/copy.h"

namespace erdma::transport::verbs {
namespace {

constexpr unsigned kMostAnswers = 1024;  ///< more wait only if the peer returns no credits

BouncedBody body_of(util::PoolHandle memory, util::PoolHandle requester, uint64_t offset,
                    uint64_t length) noexcept {
  return {memory.index, requester.index, memory.generation, requester.generation, 0,
          offset,       length};
}

size_t packet_room(size_t eager_limit) noexcept {
  return eager_limit + kPacketOverhead - kBouncedOverhead;
}

}  // namespace

bool PacketTransfers::request(Transfer& transfer) noexcept {
  if (!x_sender.credits().may_send() || !has_places()) return false;
  const BouncedBody body =
      body_of(transfer.remote.handle, x_shared.transfers.handle(transfer), 0, transfer.length);
  if (x_sender.emit(Kind::pull, &body, sizeof(body))) return false;
  return transfer.requested = true;
}

/// Counts a packet with a part of a transfer. The sender counts it, as it does messages.
void PacketTransfers::count_copied(size_t bytes) noexcept {
  x_counters->sent_bytes += bytes;
  x_counters->bounce_bytes += bytes;
}

bool PacketTransfers::push(Transfer& transfer) noexcept {
  if (!x_sender.credits().plenty() || !has_places()) return false;
  x_sender.want_more();
  const size_t bytes =
      std::min<uint64_t>(packet_room(x_sender.eager_limit()), transfer.length - transfer.posted);
  const BouncedBody body = body_of(transfer.remote.handle, x_shared.transfers.handle(transfer),
                                   transfer.posted, transfer.length);
  const Payload part{transfer.local, transfer.count, transfer.posted, bytes};
  if (x_sender.emit(Kind::push, &body, sizeof(body), part, SendHint::none)) return false;
  transfer.posted += bytes;
  count_copied(bytes);
  return true;
}

bool PacketTransfers::move_streams() noexcept {
  Stream* stream = x_streams.front();
  if (!stream || !x_sender.credits().plenty() || !has_places()) return false;
  x_sender.want_more();
  util::IntrusiveList<Stream>::erase(*stream);
  SharedMemory* shared = x_shared.shared_memory.find(stream->shared);
  if (!shared) {
    answer(stream->requester, -FI_ECANCELED);
    x_shared.streams.release(*stream);
    return true;
  }
  const size_t bytes =
      std::min<uint64_t>(packet_room(x_sender.eager_limit()), stream->length - stream->next);
  const BouncedBody body = body_of(stream->shared, stream->requester, stream->next, stream->length);
  const Payload part{shared->memory, shared->count, stream->next, bytes};
  if (x_sender.emit(Kind::data, &body, sizeof(body), part, SendHint::none)) {
    x_streams.push_front(*stream);
    return false;
  }
  stream->next += bytes;
  count_copied(bytes);
  if (stream->next < stream->length) {
    x_streams.push_back(*stream);
  } else {
    shared->stream = nullptr;
    x_shared.streams.release(*stream);
  }
  return !x_streams.empty();
}

void PacketTransfers::answer(util::PoolHandle requester, int status) noexcept {
  Answer* queued = x_answers_queued < kMostAnswers ? x_shared.answers.acquire() : nullptr;
  if (!queued) return x_host.broken(-FI_ECONNRESET, "the peer does not take its answers");
  queued->requester = requester;
  queued->status = status;
  x_answers.push_back(*queued);
  ++x_answers_queued;
  x_host.progress_soon();
}

void PacketTransfers::send_answers() noexcept {
  while (Answer* oldest = x_answers.front()) {
    if (!x_sender.credits().may_send() || !has_places()) return;
    BouncedBody body = body_of({}, oldest->requester, 0, 0);
    body.status = oldest->status;
    if (x_sender.emit(Kind::answer, &body, sizeof(body))) return;
    util::IntrusiveList<Answer>::erase(*oldest);
    x_shared.answers.release(*oldest);
    --x_answers_queued;
  }
}

void PacketTransfers::on_packet(Kind kind, const std::byte* body, size_t length,
                                Sink& sink) noexcept {
  BouncedBody bounced;
  if (length < sizeof(bounced))
    return x_host.broken(-FI_ECONNRESET, "the peer sent a truncated control packet");
  std::memcpy(&bounced, body, sizeof(bounced));
  body += sizeof(bounced);
  length -= sizeof(bounced);
  if (kind == Kind::pull) return on_pull(bounced);
  if (kind == Kind::data) return on_data(bounced, body, length, sink);
  if (kind == Kind::push) return on_push(bounced, body, length);
  on_answer(bounced, sink);
}

void PacketTransfers::on_pull(const BouncedBody& body) noexcept {
  const util::PoolHandle handle{body.memory_index, body.memory_generation};
  const util::PoolHandle requester{body.requester_index, body.requester_generation};
  SharedMemory* shared = x_shared.shared_memory.find(handle);
  if (!shared || shared->link != x_link) return answer(requester, -FI_ECANCELED);
  if (!shared->bounced || shared->access == Access::remote_write || body.length == 0 ||
      body.length > shared->length || shared->stream)
    return x_host.broken(-FI_ECONNRESET, "the peer asked for memory that it may not read");
  Stream* stream = x_shared.streams.acquire();
  if (!stream) return answer(requester, -FI_ENOMEM);
  stream->shared = handle;
  stream->requester = requester;
  stream->length = body.length;
  count_refused(shared->refusal, body.length, *x_counters);
  shared->stream = stream;
  x_streams.push_back(*stream);
}

/// The transfer that the peer names; null if it does not belong to this connection.
Transfer* PacketTransfers::find(const BouncedBody& body) noexcept {
  Transfer* transfer = x_transfers.find({body.requester_index, body.requester_generation});
  return transfer && transfer->remote.bounced ? transfer : nullptr;
}

void PacketTransfers::on_data(const BouncedBody& body, const std::byte* bytes, size_t length,
                              Sink& sink) noexcept {
  Transfer* transfer = find(body);
  if (!transfer || !transfer->is_read || body.offset != transfer->moved ||
      length > transfer->length - transfer->moved)
    return x_host.broken(-FI_ECONNRESET, "the peer sent bytes that nobody asked for");
  hmem::scatter(transfer->local, transfer->count, transfer->moved, bytes, length);
  transfer->moved += length;
  if (transfer->moved == transfer->length) x_transfers.end(*transfer, 0, sink);
}

/// The writer learns at the end whether the memory was still shared.
void PacketTransfers::on_push(const BouncedBody& body, const std::byte* bytes,
                              size_t length) noexcept {
  const util::PoolHandle handle{body.memory_index, body.memory_generation};
  SharedMemory* shared = x_shared.shared_memory.find(handle);
  const bool ours = shared && shared->link == x_link;
  if (body.offset > body.length || length > body.length - body.offset ||
      (ours && (!shared->bounced || shared->access != Access::remote_write ||
                body.length > shared->length)))
    return x_host.broken(-FI_ECONNRESET, "the peer wrote to memory that it may not write to");
  if (ours) {
    hmem::scatter(shared->memory, shared->count, body.offset, bytes, length);
    count_refused(shared->refusal, length, *x_counters);
  }
  if (body.offset + length == body.length)
    answer({body.requester_index, body.requester_generation}, ours ? 0 : -FI_ECANCELED);
}

void PacketTransfers::on_answer(const BouncedBody& body, Sink& sink) noexcept {
  Transfer* transfer = find(body);
  const bool complete = transfer && !transfer->is_read && transfer->all_posted();
  if (!transfer || body.status > 0 || (!body.status && !complete))
    return x_host.broken(-FI_ECONNRESET, "the peer answered what nobody asked");
  x_transfers.end(*transfer, body.status ? -FI_EIO : 0, sink);
}

void PacketTransfers::drop() noexcept {
  while (Stream* stream = x_streams.pop_front()) {
    if (SharedMemory* shared = x_shared.shared_memory.find(stream->shared))
      shared->stream = nullptr;
    x_shared.streams.release(*stream);
  }
  while (Answer* queued = x_answers.pop_front()) x_shared.answers.release(*queued);
  x_answers_queued = 0;
}

}  // namespace erdma::transport::verbs
