#include "protocol/waits.h"

#include <string_view>
#include <unordered_map>

#include "protocol/deliveries.h"
#include "protocol/sends.h"
#include "transport/guarded.h"

namespace erdma::protocol {
namespace {

/// Receives and unexpected messages of one source.
struct Queued {
  OpenOperations receives, unexpected;
};
using BySource = std::unordered_map<const Peer*, Queued>;

constexpr uint64_t kOfAccess = uint64_t(1) << 63;  ///< set in ids of accesses, unlike in sends'

uint64_t id_of(const util::PoolHandle& handle) noexcept {
  return uint64_t(handle.index) << 16 | handle.generation;
}

/// Counts one operation. The lowest `id` is the oldest operation.
void count(OpenOperations& all, uint64_t id, uint64_t tag, uint64_t ignore,
           uint64_t bytes) noexcept {
  const bool oldest = all.count++ == 0 || id < all.id;
  if (oldest) all = {all.count, id, tag, ignore, bytes};
}

/// The two matchers number their entries separately, so the lowest bit of an id says which it is.
void look_at(Matcher& matcher, bool tagged, BySource& by_source, OpenOperations& any) {
  for (PostedEntry* entry = matcher.first_posted(); entry; entry = matcher.next_posted(*entry)) {
    if (entry->sticky) continue;
    const auto& receive = static_cast<const Receive&>(*entry);
    OpenOperations& all = entry->source ? by_source[entry->source].receives : any;
    count(all, (uint64_t(entry->sequence) << 1 | tagged) + 1, entry->tag, entry->ignore,
          receive.buffers.length);
  }
  for (UnexpectedEntry* entry = matcher.first_unexpected(); entry;
       entry = matcher.next_unexpected(*entry))
    count(by_source[entry->source].unexpected, (entry->sequence << 1 | tagged) + 1, entry->tag, 0,
          static_cast<const Unexpected&>(*entry).header.length);
}

const char* what_for(const Peer& peer, const Send& send, bool up) noexcept {
  switch (send.state) {
    case Send::State::queued:
      return send.fence && peer.sending() ? "earlier" : up ? "room" : "connection";
    case Send::State::granted:
      return "room";
    case Send::State::writing:
      return "bytes";
    case Send::State::written:
      return "delivery";
    case Send::State::in_flight:
      return send.one_sided ? "target" : "match";
  }
  return "";
}

const char* kind_of(const Send& send) noexcept {
  if (!send.one_sided) return "message";
  switch (send.one_sided->op) {
    case wire::Op::write:
      return "write";
    case wire::Op::read:
      return "read";
    default:
      return "atomic";
  }
}

void look_at_sends(Peer& peer, FastRma& fast_rma, PeerWaits& waits) noexcept {
  Send* oldest = peer.in_flight.front();
  if (!oldest) oldest = peer.queued.front();
  if (oldest) {
    waits.sends = {0, id_of(oldest->initiator->sends.id(*oldest)), oldest->tag, 0,
                   oldest->buffers.length};
    waits.send_kind = kind_of(*oldest);
    waits.sends_for = what_for(peer, *oldest, std::string_view(waits.link.state) == "up");
  } else if (Access* const access = peer.grants ? peer.grants->accesses.front() : nullptr) {
    waits.sends.id = kOfAccess | id_of(fast_rma.handle(*access));
    waits.send_kind = access->reads ? "read" : "write";
    waits.sends_for = "target";
  }
  for (Send* send = peer.in_flight.front(); send; send = peer.in_flight.next(*send))
    ++waits.sends.count;
  for (Send* send = peer.queued.front(); send; send = peer.queued.next(*send)) ++waits.sends.count;
  if (!peer.grants) return;
  auto& accesses = peer.grants->accesses;
  for (Access* one = accesses.front(); one; one = accesses.next(*one)) ++waits.sends.count;
}

void look_at_deliveries(Peer& peer, PeerWaits& waits) noexcept {
  constexpr const char* kFor[] = {"room", "bytes", "sender", "flush", "sender", "room"};
  Incoming* const incoming = peer.incoming.get();
  if (!incoming) return;
  for (auto* const list : {&incoming->active, &incoming->starting, &incoming->unreported})
    for (Delivery* one = list->front(); one; one = list->next(*one)) {
      if (waits.matched.count++ > 0) continue;
      waits.matched = {1, uint64_t(one->sender.index) << 16 | one->sender.generation, one->tag, 0,
                       one->message_length};
      waits.matched_for = kFor[size_t(one->state)];
    }
}

}  // namespace

void report_waits(Peers& peers, ReceiveQueues& queues, FastRma& fast_rma,
                  WaitsSink& sink) noexcept {
  transport::guarded("showing what waits", [&] {
    BySource by_source;
    OpenOperations any;
    for (const bool tagged : {false, true}) look_at(queues.matcher(tagged), tagged, by_source, any);
    for (Peer* const peer : peers.all()) {
      PeerWaits waits(peer->address);
      if (peer->link) waits.link = peer->link->report();
      waits.throttled = peer->throttled_by != nullptr;
      look_at_sends(*peer, fast_rma, waits);
      look_at_deliveries(*peer, waits);
      if (const auto found = by_source.find(peer->source); found != by_source.end()) {
        waits.receives = found->second.receives;
        waits.unexpected = found->second.unexpected;
      }
      sink.on_peer_waits(waits);
    }
    sink.on_endpoint_waits(any);
  });
}

}  // namespace erdma::protocol
