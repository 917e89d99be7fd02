#include "protocol/rma_target.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "hmem/device_memory.h"
#include "protocol/inbound.h"
#include "util/log.h"

namespace erdma::protocol {
namespace {

/// Most services of one peer: it has at most 65536 operations in flight (FI_ERDMA_TX_SIZE), and an
/// earlier connection may have left as many.
constexpr uint32_t kMaxUnserved = 2 * 65536;
/// Most bytes of copied results (of atomics and of ordered reads) that wait for one peer.
constexpr size_t kMostResultBytes = size_t(64) << 20;

/// Returns whether the request, a read of device memory, is an endpoint's read of its own memory
/// that should have gone through the NIC. Clients flush by such reads; a copy by the driver could
/// return the bytes that were there before the NIC wrote.
bool must_flush(const Peer& peer, const Request& request) noexcept {
  const auto* const end = request.regions + request.memory.count;
  return peer.itself &&
         std::any_of(request.regions, end, [](auto* region) { return bool(region->registered); });
}

/// Returns the error of a read that must flush.
int refuse_flush() noexcept {
  ERDMA_WARN(EP_DATA,
             "a read of the endpoint's own GPU memory can't go through the NIC, so it would not "
             "flush: it must be of one piece of memory, without data\n");
  return -FI_EOPNOTSUPP;
}

void tell_refused(const Peer& peer, const char* purpose) noexcept {
  ERDMA_INFO(EP_DATA, "%s asked %s memory, which its key does not permit: refused\n",
             peer.address.to_string().c_str(), purpose);
}

/// Returns why an endpoint's empty read of its own device memory flushed nothing, as a packet
/// carries it; 0: it names no such memory, and there is nothing to flush.
int empty_flush(const Peer& peer, const Request& request, Regions& known) noexcept {
  for (size_t i = 0; i < request.segment_count; ++i) {
    const wire::Segment& segment = request.segments[i];
    const Region* const region = known.region(segment.key);
    if (!region || !region->device || !region->registered) continue;
    Request byte;
    byte.segments[0] = {segment.address, segment.key, 1};
    const int refused = byte.locate(&known, FI_REMOTE_READ);
    if (!refused) return refuse_flush();
    tell_refused(peer, "to flush");
    return refused;
  }
  return 0;
}

void hold_regions(Service& service) noexcept {
  for (size_t i = 0; i < service.request.memory.count; ++i)
    service.uses[i] = RegionUse(*service.request.regions[i]);
}

/// Replaces the result by a copy of what is left of it.
bool keep_copy(Service& service) noexcept {
  Peer& peer = *service.peer;
  const Buffers& bytes = service.result;
  const size_t left = bytes.length - service.answered;
  if (peer.incoming->result_bytes + left > kMostResultBytes) return false;
  service.copy.reset(new (std::nothrow) std::byte[left]);
  if (!service.copy) return false;
  hmem::gather(service.copy.get(), bytes.iov, bytes.count, service.answered, left);
  service.result = {1, left, {{service.copy.get(), left}}};
  service.answered = 0;
  peer.incoming->result_bytes += left;
  return true;
}

/// Sends the result from byte `done` on and advances `done`. -FI_EAGAIN: a part is left, also if
/// the link lacks the memory to connect.
int send_result(Peer& peer, wire::RequestId initiator, const Buffers& bytes,
                size_t& done) noexcept {
  const wire::OneSidedHeader header{wire::Op::result, 0, initiator.generation, initiator.index, {}};
  transport::Header encoded;
  std::memcpy(&encoded, &header, sizeof(encoded));
  while (done < bytes.length) {
    const size_t room = std::max(transport::kAlwaysEager, peer.link->limits().eager);
    const size_t part = std::min(room, bytes.length - done);
    iovec pieces[transport::kMaxIov];
    const size_t used = hmem::slice(bytes.iov, bytes.count, done, part, pieces);
    const int rc = peer.link->send(encoded, pieces, used, part, transport::SendHint::none);
    if (rc != 0) return rc == -FI_ENOMEM ? -FI_EAGAIN : rc;
    done += part;
  }
  return 0;
}

}  // namespace

int Service::start() noexcept {
  return target->start(*this);
}

void Service::finish(int status) noexcept {
  target->finish(*this, status);
}

// --- requests -----------------------------------------------------------------------------------

void RmaTarget::on_packet(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                          const std::byte* payload, size_t length) {
  if (header.op == wire::Op::segments) return on_segments(peer, link, payload, length);
  Request request;
  request.header = header;
  request.payload = payload;
  request.length = length;
  if (header.op == wire::Op::atomic) return on_atomic(peer, link, request);
  size_t more = 0;
  FurtherSegments* const segments = peer.incoming ? peer.incoming->segments.get() : nullptr;
  if (header.flags & wire::kSegments && segments && segments->link == &link)
    more = std::exchange(segments->count, size_t(0));
  if (!request.parse(more ? segments->all.data() : nullptr, more))
    return inbound::protocol_violation(link, "a malformed one-sided request");
  on_transfer(peer, link, request);
}

/// Keeps all segments but the first of the write or read that follows.
void RmaTarget::on_segments(Peer& peer, transport::Link& link, const std::byte* payload,
                            size_t length) {
  if (!peer.make_incoming()) throw std::bad_alloc();
  if (!peer.incoming->segments) peer.incoming->segments = std::make_unique<FurtherSegments>();
  FurtherSegments& segments = *peer.incoming->segments;
  const size_t count = length / sizeof(wire::Segment);
  if (length % sizeof(wire::Segment) || count == 0 || count > segments.all.size())
    return inbound::protocol_violation(link, "a malformed one-sided request");
  segments.link = &link;
  segments.count = count;
  std::memcpy(segments.all.data(), payload, length);
}

void RmaTarget::on_transfer(Peer& peer, transport::Link& link, Request& request) noexcept {
  const bool writes = request.header.op == wire::Op::write;
  const uint64_t access = writes ? FI_REMOTE_WRITE : FI_REMOTE_READ;
  if (const int rc = request.locate(x_regions, access)) {
    tell_refused(peer, writes ? "to write" : "to read");
    return x_controls.send_fin(peer, request.initiator(), rc);
  }
  if (x_devices) [[unlikely]] {
    if (request.device()) return on_device_transfer(peer, link, request, access);
    const bool flushes = !writes && request.total == 0 && peer.itself && x_regions;
    if (const int rc = flushes ? empty_flush(peer, request, *x_regions) : 0)
      return x_controls.send_fin(peer, request.initiator(), rc);
  }
  if (request.remote_key.size) return serve(peer, link, request);
  const Buffers& memory = request.memory;
  if (writes) {
    // FI_ORDER_RMA_WAW also holds for another thread here that polls the bytes of the later write,
    // while this thread makes progress. A weakly ordered CPU could show it the earlier write later.
    std::atomic_thread_fence(std::memory_order_release);
    hmem::scatter(memory.iov, memory.count, 0, request.payload, request.length);
  }
  x_grants.after(peer, link, request);
  if (writes || memory.length == 0) return conclude(peer, link, request, access);
  answer(peer, link, request, memory, true, access);
}

/// Part of the memory is device memory. If packets carry the bytes, the driver copies them now.
void RmaTarget::on_device_transfer(Peer& peer, transport::Link& link, Request& request,
                                   uint64_t access) noexcept {
  const Buffers& memory = request.memory;
  const bool writes = access == FI_REMOTE_WRITE;
  if (!writes && must_flush(peer, request))
    return x_controls.send_fin(peer, request.initiator(), refuse_flush());
  if (request.remote_key.size) return serve(peer, link, request);
  std::unique_ptr<std::byte[]> result(writes ? nullptr
                                             : new (std::nothrow) std::byte[memory.length]);
  const int rc =
      writes    ? x_devices->scatter(memory.iov, memory.count, 0, request.payload, request.length)
      : !result ? -FI_ENOMEM
                : x_devices->gather(result.get(), memory.iov, memory.count, 0, memory.length);
  if (rc) return x_controls.send_fin(peer, request.initiator(), rc);
  x_grants.after(peer, link, request);
  if (writes) return conclude(peer, link, request, access);
  const Buffers bytes{1, memory.length, {{result.get(), memory.length}}};
  answer(peer, link, request, bytes, false, access);
}

void RmaTarget::on_atomic(Peer& peer, transport::Link& link, Request& request) {
  const auto word = wire::reread<wire::AtomicWord>(request.header.segment.length);
  AtomicRequest ask;
  if (!ask.parse(request, word))
    return inbound::protocol_violation(link, "a malformed atomic operation");
  request.segments[0] = request.header.segment;
  // The rest of the operation must be permitted, too, before the first element changes.
  request.segments[0].length = word.count * ask.element;
  const uint64_t access = ask.access();
  if (const int rc = request.locate(x_regions, access)) {
    tell_refused(peer, "for an atomic operation on");
    return x_controls.send_fin(peer, request.initiator(), rc);
  }
  if (request.device()) return x_controls.send_fin(peer, request.initiator(), -FI_EOPNOTSUPP);
  const size_t bytes = ask.count * ask.element;
  const size_t kept = peer.incoming ? peer.incoming->result_bytes : 0;
  if (ask.fetches && kept + bytes > kMostResultBytes)
    return x_controls.send_fin(peer, request.initiator(), -FI_ENOMEM);
  const bool last = request.header.flags & wire::kLast;
  if (!last && !peer.make_incoming()) throw std::bad_alloc();
  std::byte before[kMaxAtomicBytes];
  auto* const target = static_cast<std::byte*>(request.memory.iov[0].iov_base);
  ask.function(target, ask.operands, ask.compares, ask.fetches ? before : nullptr, ask.count);
  if (peer.incoming) peer.incoming->atomic_parts.on_executed(link, request, *x_regions);
  if (ask.fetches) {
    const Buffers result{1, bytes, {{before, bytes}}};
    answer(peer, link, request, result, false, last ? access : 0);
  } else if (last) {
    conclude(peer, link, request, access);
  }
}

/// Sends the fin of an operation that is over, and reports the operation here once the link has
/// taken the fin: the initiator waits for it, and an application that has seen all operations of
/// its peers may stop calling progress.
void RmaTarget::conclude(Peer& peer, transport::Link& link, const Request& request,
                         uint64_t access) noexcept {
  // An operation that is reported here must not overtake the results of earlier ones.
  const bool in_turn = !peer.has_services() || !is_watched(request, access);
  if (in_turn && x_controls.try_fin(peer, request.initiator(), 0))
    return report_access(peer, request, access);
  Service* const service = is_watched(request, access) ? try_service(peer, link, request) : nullptr;
  if (!service) {
    report_access(peer, request, access);
    return x_controls.send_fin(peer, request.initiator(), 0);
  }
  hold_regions(*service);
  service->executed = access;
  if (in_turn) return conclude(*service);
  service->fin_due = true;
  peer.incoming->services.push_back(*service);
}

/// Returns whether report_access() tells anybody.
bool RmaTarget::is_watched(const Request& request, uint64_t access) const noexcept {
  const bool writes = access == FI_REMOTE_WRITE;
  if (request.header.flags & wire::kHasData && writes) return true;
  if (x_setup && (writes ? x_setup->remote_writes : x_setup->remote_reads).counts()) return true;
  return std::any_of(request.regions, request.regions + request.memory.count,
                     [](const Region* region) { return region->counts(); });
}

/// The regions of a service whose fin is due may be closed already.
void RmaTarget::conclude(Service& service) noexcept {
  Peer& peer = *service.peer;
  if (!service.fin_due && !is_watched(service.request, service.executed)) {
    const wire::RequestId initiator = service.request.initiator();
    end(service);
    return x_controls.send_fin(peer, initiator, 0);
  }
  if (x_controls.answer(peer, service.request.initiator(), 0, service)) return end(service);
  service.fin_due = false;
  service.fin_kept = true;
  peer.incoming->served.push_back(service);
}

/// Reports an operation on the memory here that is over. An atomic operation that fetches and
/// modifies counts as a read at the endpoint (fi_endpoint(3), FI_REMOTE_READ), and as a read and a
/// write at the region (fi_mr(3), fi_mr_bind).
void RmaTarget::report_access(const Peer& peer, const Request& request, uint64_t access) noexcept {
  for (size_t i = 0; i < request.memory.count; ++i) {
    const auto* const end = request.regions + i;
    if (std::find(request.regions, end, request.regions[i]) == end)
      request.regions[i]->accessed(access);
  }
  const bool writes = access == FI_REMOTE_WRITE;
  if (!x_setup) return;
  CompletionSink& sink = writes ? x_setup->remote_writes : x_setup->remote_reads;
  const bool report = (request.header.flags & wire::kHasData) != 0 && writes;
  sink.succeed(report) = {nullptr,
                          FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                          request.memory.length,
                          nullptr,
                          request.data,
                          0,
                          peer.fi_addr};
}

// --- bulk ---------------------------------------------------------------------------------------

/// Null: the fin with the error is sent, or the link has failed.
Service* RmaTarget::make_service(Peer& peer, transport::Link& link,
                                 const Request& request) noexcept {
  if (peer.incoming && peer.incoming->unserved >= kMaxUnserved)
    return inbound::protocol_violation(link, "more requests than a peer can have"), nullptr;
  Service* const service = try_service(peer, link, request);
  if (!service) x_controls.send_fin(peer, request.initiator(), -FI_ENOMEM);
  return service;
}

/// Null: out of memory, or there are too many.
Service* RmaTarget::try_service(Peer& peer, transport::Link& link,
                                const Request& request) noexcept {
  if (!peer.make_incoming() || peer.incoming->unserved >= kMaxUnserved) return nullptr;
  Service* const service = x_services.acquire();
  if (!service) return nullptr;
  ++peer.incoming->unserved;
  service->target = this;
  service->peer = &peer;
  service->link = &link;
  service->request = request;
  return service;
}

/// Moves the bytes between the memory here and what the initiator shared.
void RmaTarget::serve(Peer& peer, transport::Link& link, Request& request) noexcept {
  Service* service = make_service(peer, link, request);
  if (!service) return;
  hold_regions(*service);
  x_peers.start(peer, peer.incoming->services, *service, peer.has_services());
}

/// -FI_EAGAIN: nothing happened, or a part of the result is left to be sent.
int RmaTarget::start(Service& service) noexcept {
  const Request& request = service.request;
  const Buffers& memory = request.memory;
  Peer& peer = *service.peer;
  if (service.fin_due) return conclude(service), 0;
  if (service.answers) {
    const int rc = send_result(peer, request.initiator(), service.result, service.answered);
    if (rc != -FI_EAGAIN) end(service);
    return rc == -FI_EAGAIN ? rc : 0;  // any other error is of the link, which goes down
  }
  const uint64_t token = make_token(TokenOf::service, x_services.handle(service));
  const bool writes = request.header.op == wire::Op::write;
  const transport::RemoteRange remote{request.remote_key, 0, memory.length};
  const int rc = writes ? service.link->get(remote, memory.iov, memory.count, token)
                        : service.link->put(remote, memory.iov, memory.count, token, false);
  if (rc == transport::kDone) return on_moved(x_services.handle(service), 0), 0;
  if (rc == 0) peer.incoming->served.push_back(service);
  return rc;
}

/// Bytes that were moved into device memory may have to be flushed.
void RmaTarget::on_moved(util::PoolHandle handle, int status) noexcept {
  Service* const service = x_services.find(handle);
  if (!service) return;
  const Request& request = service->request;
  const bool writes = request.header.op == wire::Op::write;
  if (x_devices && status == 0 && writes && !service->flushing && request.device()) [[unlikely]] {
    service->flushing = true;
    status = service->link->flush(request.memory.iov, request.memory.count,
                                  make_token(TokenOf::service, handle));
    if (status == transport::kFlushing) return;
  }
  finish(*service, status);
}

void RmaTarget::finish(Service& service, int status) noexcept {
  if (service.linked()) service.unlink();
  if (service.fin_kept) return end(service);
  Peer& peer = *service.peer;
  if (status != 0) {
    const wire::RequestId initiator = service.request.initiator();
    drop_service(service);
    return x_controls.send_fin(peer, initiator, status);
  }
  service.executed =
      service.request.header.op == wire::Op::write ? FI_REMOTE_WRITE : FI_REMOTE_READ;
  x_grants.after(peer, *service.link, service.request);
  if (!peer.has_services() || !is_watched(service.request, service.executed))
    return conclude(service);
  service.fin_due = true;
  peer.incoming->services.push_back(service);
}

/// Reports what the service has executed. It accesses no region any more.
void RmaTarget::report(Service& service) noexcept {
  if (const uint64_t access = std::exchange(service.executed, 0))
    report_access(*service.peer, service.request, access);
  for (RegionUse& use : service.uses) use = RegionUse();
}

void RmaTarget::report_rest() noexcept {
  for (Peer* const peer : x_peers.all()) {
    if (!peer->incoming) continue;
    for (auto* list : {&peer->incoming->services, &peer->incoming->served})
      for (Service* service = list->front(); service; service = list->next(*service))
        if (service->executed) report(*service);
  }
}

void RmaTarget::end(Service& service) noexcept {
  report(service);
  drop_service(service);
}

void RmaTarget::drop_service(Service& service) noexcept {
  if (service.linked()) service.unlink();
  Incoming& incoming = *service.peer->incoming;
  --incoming.unserved;
  if (service.copy) incoming.result_bytes -= service.result.length;
  if (service.answers) service.peer->unsent.drop_result();
  x_services.release(service);
}

void RmaTarget::drop(Peer& peer, const transport::Link* link) noexcept {
  Incoming* const incoming = peer.incoming.get();
  if (!incoming) return;
  for (auto* list : {&incoming->services, &incoming->served}) {
    for (Service* service = list->front(); service;) {
      Service* next = list->next(*service);
      // The end of the link of its fin has ended a service that was over.
      const bool tells = service->answers || service->fin_due;
      const bool gone = service->link == link || (tells && peer.link == link);
      if (gone && !service->fin_kept) end(*service);
      service = next;
    }
  }
  FurtherSegments* const segments = incoming->segments.get();
  if (segments && segments->link == link) segments->count = 0;
  incoming->atomic_parts.drop(link);
}

void RmaTarget::abandon(const Region& region, bool by_force) noexcept {
  for (Peer* const peer : x_peers.all()) {
    if (!peer->incoming) continue;
    for (auto* list : {&peer->incoming->services, &peer->incoming->served}) {
      for (Service* service = list->front(); service; service = list->next(*service)) {
        const auto* const regions = service->request.regions;
        const auto* const end = regions + service->request.memory.count;
        if (std::find(regions, end, &region) == end) continue;
        if (service->copy || service->fin_due || service->fin_kept)
          report(*service);
        else if (by_force)
          service->link->fail(-FI_ETIMEDOUT);
      }
    }
  }
}

// --- results ------------------------------------------------------------------------------------

/// Sends the bytes that were read or fetched. If the link has no room for all, the rest waits. It
/// is copied if `bytes` do not outlive this call (not `lasting`), and for ordered reads, which must
/// not see later writes. A longer read is sent from the region itself later, so that a peer that
/// does not take its results costs no memory. `access`: what to report here once all are sent; 0:
/// nothing.
void RmaTarget::answer(Peer& peer, transport::Link& link, const Request& request,
                       const Buffers& bytes, bool lasting, uint64_t access) noexcept {
  if (send_answer(peer, link, request, bytes, lasting, access) && access)
    report_access(peer, request, access);
}

/// False: a part waits.
bool RmaTarget::send_answer(Peer& peer, transport::Link& link, const Request& request,
                            const Buffers& bytes, bool lasting, uint64_t access) noexcept {
  if (!x_peers.reach(peer)) return true;
  size_t done = 0;
  // Nor may it overtake their fins.
  const bool in_turn = peer.controls.empty() || !is_watched(request, access);
  if (in_turn && !peer.has_services() &&
      send_result(peer, request.initiator(), bytes, done) != -FI_EAGAIN)
    return true;
  Service* service = make_service(peer, link, request);
  if (!service) return true;
  service->answered = done;
  service->result = bytes;
  hold_regions(*service);
  if ((!lasting || bytes.length <= transport::kAlwaysEager) && !keep_copy(*service)) {
    drop_service(*service);
    x_controls.send_fin(peer, request.initiator(), -FI_ENOMEM);
    return true;
  }
  service->answers = true;
  peer.unsent.keep_result();
  service->executed = access;
  peer.incoming->services.push_back(*service);
  x_peers.backlog(peer);
  return false;
}

}  // namespace erdma::protocol
