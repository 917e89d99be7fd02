// RMA, where the memory is: a request is checked as a whole before anything is touched.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "hmem/device_memory.h"
#include "protocol/engine.h"
#include "util/log.h"

namespace erdma::protocol {
namespace {

/// Longer reads bring an exposure, whatever a link's packets can hold.
constexpr size_t kMaxResult = size_t(1) << 16;
/// A peer has at most 65536 operations in flight (FI_ERDMA_TX_SIZE), and those of a connection
/// before.
constexpr uint32_t kMaxUnserved = 2 * 65536;

}  // namespace

void Engine::on_one_sided(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                          const std::byte* payload, size_t length) noexcept {
  if (header.op == wire::Op::result) return on_result(peer, link, header, payload, length);
  if (header.op == wire::Op::segments) return on_segments(peer, link, header, payload, length);
  if (header.op > wire::Op::result) return on_access(peer, link, header, payload, length);
  Request request;
  request.header = header;
  request.payload = payload;
  request.length = length;
  if (header.op == wire::Op::atomic) return on_atomic(peer, link, request);
  if (!parse(peer, header, request))
    return inbound::protocol_violation(link, "a malformed one-sided request");
  on_transfer(peer, link, request);
}

void Engine::on_segments(Peer& peer, transport::Link& link, const wire::OneSidedHeader&,
                         const std::byte* payload, size_t length) noexcept {
  if (!peer.segments) peer.segments.reset(new (std::nothrow) FurtherSegments);
  if (!peer.segments) return link.fail(-FI_ENOMEM);
  const size_t count = length / sizeof(wire::Segment);
  if (length % sizeof(wire::Segment) || count == 0 || count > peer.segments->size())
    return inbound::protocol_violation(link, "a malformed one-sided request");
  peer.segment_count = uint8_t(count);
  std::memcpy(peer.segments->data(), payload, length);
}

/// What the payload of a write or read begins with. False: malformed.
bool Engine::parse(Peer& peer, const wire::OneSidedHeader& header, Request& request) noexcept {
  if (header.flags & wire::kHasData) {
    if (request.length < sizeof(request.data)) return false;
    std::memcpy(&request.data, request.payload, sizeof(request.data));
    request.payload += sizeof(request.data);
    request.length -= sizeof(request.data);
  }
  request.segments[0] = header.segment;
  if (header.flags & wire::kSegments) {
    request.segment_count += std::exchange(peer.segment_count, uint8_t(0));
    if (request.segment_count == 1) return false;
    std::copy_n(peer.segments->data(), request.segment_count - 1, request.segments + 1);
  }
  for (size_t i = 0; i < request.segment_count; ++i)
    if (__builtin_add_overflow(request.total, request.segments[i].length, &request.total))
      return false;
  if (request.total > SSIZE_MAX) return false;
  if (header.flags & wire::kExposed) {
    if (request.length == 0 || request.length > transport::Exposure::kMaxBytes) return false;
    request.exposure.size = uint8_t(request.length);
    std::memcpy(request.exposure.bytes, request.payload, request.length);
    return request.total > 0;
  }
  return header.op == wire::Op::write ? request.length == request.total
                                      : request.length == 0 && request.total <= kMaxResult;
}

/// Finds all memory that the request names. -FI_EACCES unless every byte of it is in a region that
/// is open and permits this.
int Engine::locate(Request& request, uint64_t access) noexcept {
  for (size_t i = 0; i < request.segment_count; ++i)
    if (const int rc = add_range(request, request.segments[i], access)) return rc;
  return 0;
}

int Engine::add_range(Request& request, const wire::Segment& segment, uint64_t access) noexcept {
  if (segment.length == 0) return 0;
  Region* region = x_one_sided_setup ? x_one_sided_setup->regions.region(segment.key) : nullptr;
  if (!region || (region->access & access) != access) return -FI_EACCES;
  for (size_t i = 0; i < region->iov_count; ++i) {
    const iovec& part = region->iov[i];
    const auto start = reinterpret_cast<uint64_t>(part.iov_base);
    const uint64_t offset = segment.address - start;
    if (segment.address < start || offset > part.iov_len || segment.length > part.iov_len - offset)
      continue;
    request.regions[request.memory.count] = region;
    request.memory.iov[request.memory.count++] = {static_cast<std::byte*>(part.iov_base) + offset,
                                                  segment.length};
    request.memory.length += segment.length;
    return 0;
  }
  return -FI_EACCES;
}

void Engine::on_transfer(Peer& peer, transport::Link& link, Request& request) noexcept {
  const bool writes = request.header.op == wire::Op::write;
  const uint64_t access = writes ? FI_REMOTE_WRITE : FI_REMOTE_READ;
  if (const int rc = locate(request, access)) {
    ERDMA_INFO(EP_DATA,
               "%s asked to %s memory that is not registered for that under its key: refused\n",
               peer.address.to_string().c_str(), writes ? "write" : "read");
    return x_controls.send_fin(peer, request.initiator(), rc);
  }
  if (x_config.device_memory) [[unlikely]]
    if (request.device()) return on_device_transfer(peer, link, request, access);
  if (request.exposure.size) return serve(peer, link, request);
  const Buffers& memory = request.memory;
  if (writes) hmem::scatter(memory.iov, memory.count, 0, request.payload, request.length);
  report_access(peer, request, access);
  grant_after(peer, link, request);
  if (writes || memory.length == 0) return x_controls.send_fin(peer, request.initiator(), 0);
  answer(peer, link, request, memory, true);
}

/// A read of our own device memory that did not take the NIC's way: the driver would find what was
/// there before the NIC wrote, and clients flush by such a read.
bool Engine::must_flush(const Peer& peer, const Request& request) noexcept {
  if (!peer.itself) return false;
  const auto* const end = request.regions + request.memory.count;
  if (std::none_of(request.regions, end, [](auto* region) { return region->opened != nullptr; }))
    return false;
  ERDMA_WARN(EP_DATA,
             "a read of one's own GPU memory can't take the NIC's way, which is what flushes: it "
             "needs one piece of memory there, and no data\n");
  return true;
}

/// Some of the memory is a device's.
void Engine::on_device_transfer(Peer& peer, transport::Link& link, Request& request,
                                uint64_t access) noexcept {
  if (access == FI_REMOTE_READ && must_flush(peer, request))
    return x_controls.send_fin(peer, request.initiator(), -FI_EOPNOTSUPP);
  if (request.exposure.size) return serve(peer, link, request);
  on_device_packet(peer, link, request);
}

/// The driver copies it at once.
void Engine::on_device_packet(Peer& peer, transport::Link& link, Request& request) noexcept {
  const Buffers& memory = request.memory;
  const bool writes = request.header.op == wire::Op::write;
  std::unique_ptr<std::byte[]> result(writes ? nullptr
                                             : new (std::nothrow) std::byte[memory.length]);
  const int rc = writes    ? x_config.device_memory->scatter(memory.iov, memory.count, 0,
                                                             request.payload, request.length)
                 : !result ? -FI_ENOMEM
                           : x_config.device_memory->gather(result.get(), memory.iov, memory.count,
                                                            0, memory.length);
  if (rc) return x_controls.send_fin(peer, request.initiator(), rc);
  report_access(peer, request, writes ? FI_REMOTE_WRITE : FI_REMOTE_READ);
  grant_after(peer, link, request);
  if (writes) return x_controls.send_fin(peer, request.initiator(), 0);
  const Buffers bytes{1, memory.length, {{result.get(), memory.length}}};
  answer(peer, link, request, bytes, false);
}

/// Of an operation on the memory here that is over. One that fetches and modifies is a read to the
/// endpoint (fi_endpoint.3, FI_REMOTE_READ), and to the region a write too (fi_mr.3, fi_mr_bind).
void Engine::report_access(const Peer& peer, const Request& request, uint64_t access) noexcept {
  for (size_t i = 0; i < request.memory.count; ++i) {
    const auto* const end = request.regions + i;
    if (std::find(request.regions, end, request.regions[i]) == end)
      request.regions[i]->accessed(access);
  }
  const bool writes = access == FI_REMOTE_WRITE;
  if (!x_one_sided_setup) return;
  CompletionSink& sink =
      writes ? x_one_sided_setup->remote_writes : x_one_sided_setup->remote_reads;
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

/// Null: the peer has been told, or has lost its link.
Service* Engine::make_service(Peer& peer, transport::Link& link, const Request& request) noexcept {
  if (peer.unserved >= kMaxUnserved)
    return inbound::protocol_violation(link, "more requests than a peer can have"), nullptr;
  Service* service = x_services.acquire();
  if (!service) return x_controls.send_fin(peer, request.initiator(), -FI_ENOMEM), nullptr;
  ++peer.unserved;
  service->peer = &peer;
  service->link = &link;
  service->request = request;
  return service;
}

void Engine::hold_regions(Service& service) noexcept {
  for (size_t i = 0; i < service.request.memory.count; ++i)
    service.uses[i] = RegionUse(*service.request.regions[i]);
}

/// Moves the bytes between the memory here and what the initiator exposed.
void Engine::serve(Peer& peer, transport::Link& link, Request& request) noexcept {
  Service* service = make_service(peer, link, request);
  if (!service) return;
  hold_regions(*service);
  const int rc = peer.services.empty() ? start(*service) : -FI_EAGAIN;
  if (rc == -FI_EAGAIN) {
    peer.services.push_back(*service);
    x_peers.backlog(peer);
  } else if (rc != 0) {
    finish_service(*service, rc);
  }
}

/// -FI_EAGAIN: nothing happened, or the result is not all on its way.
int Engine::start(Service& service) noexcept {
  const Request& request = service.request;
  const Buffers& memory = request.memory;
  Peer& peer = *service.peer;
  if (service.answers) {
    const int rc = send_result(peer, request.initiator(), memory, service.answered);
    if (rc != -FI_EAGAIN) drop_service(service);
    return rc == -FI_EAGAIN ? rc : 0;  // any other failure is the link's, which settles it
  }
  const uint64_t token = token_of(x_services.handle(service)) | kServiceToken;
  const bool writes = request.header.op == wire::Op::write;
  const int rc =
      writes
          ? service.link->read(request.exposure, memory.iov, memory.count, memory.length, token)
          : service.link->write(request.exposure, memory.iov, memory.count, memory.length, token);
  if (rc == 0) peer.served.push_back(service);
  return rc;
}

bool Engine::flush_services(Peer& peer) noexcept {
  while (Service* service = peer.services.front()) {
    util::IntrusiveList<Service>::erase(*service);
    const int rc = start(*service);
    if (rc == -FI_EAGAIN) {
      peer.services.push_front(*service);
      return false;
    }
    if (rc != 0) finish_service(*service, rc);
  }
  return true;
}

/// All bytes are moved, or not. Those in device memory may not be visible yet.
void Engine::settle_service(Service& service, int status) noexcept {
  const Request& request = service.request;
  const bool writes = request.header.op == wire::Op::write;
  if (status == 0 && writes && !service.settling && request.device()) {
    service.settling = true;
    const uint64_t token = token_of(x_services.handle(service)) | kServiceToken;
    status = service.link->settle(request.memory.iov, request.memory.count, token);
    if (status == transport::kSettling) return;
  }
  finish_service(service, status);
}

void Engine::finish_service(Service& service, int status) noexcept {
  Peer& peer = *service.peer;
  const Request request = service.request;
  const bool writes = request.header.op == wire::Op::write;
  if (status == 0) {
    report_access(peer, request, writes ? FI_REMOTE_WRITE : FI_REMOTE_READ);
    grant_after(peer, *service.link, request);
  }
  drop_service(service);
  x_controls.send_fin(peer, request.initiator(), status);
}

void Engine::drop_service(Service& service) noexcept {
  if (service.linked()) util::IntrusiveList<Service>::erase(service);
  --service.peer->unserved;
  if (service.result) service.peer->result_bytes -= service.request.memory.length;
  x_services.release(service);
}

/// The link is down; what it was moving was reported before.
void Engine::drop_services(Peer& peer, const transport::Link* link) noexcept {
  for (auto* list : {&peer.services, &peer.served}) {
    for (Service* service = list->front(); service;) {
      Service* next = list->next(*service);
      const bool gone = service->link == link || (service->answers && peer.link == link);
      if (gone) drop_service(*service);
      service = next;
    }
  }
  peer.segment_count = 0;
}

void Engine::abandon(const Region& region) noexcept {
  for (auto& [address, peer] : x_peers.all()) {
    for (auto* list : {&peer->services, &peer->served}) {
      for (Service* service = list->front(); service; service = list->next(*service)) {
        const auto* const regions = service->request.regions;
        const auto* const end = regions + service->request.memory.count;
        if (!service->result && std::find(regions, end, &region) != end)
          service->link->fail(-FI_ETIMEDOUT);
      }
    }
    if (!peer->grants) continue;
    for (const auto& [key, granted] : peer->grants->theirs)
      if (granted.use.get() == &region && granted.lender && !granted.lender->unused())
        granted.lender->fail(-FI_ETIMEDOUT);
  }
}

// --- results ------------------------------------------------------------------------------------

/// Sends what was read or fetched. Of what finds no room a copy is made where an earlier read must
/// not see a later write, and where the bytes do not last; a longer read that regions hold is sent
/// from there, so that a peer that takes nothing costs no memory by that.
void Engine::answer(Peer& peer, transport::Link& link, const Request& request, const Buffers& bytes,
                    bool lasting) noexcept {
  if (!x_peers.reach(peer)) return;
  size_t done = 0;
  if (peer.services.empty() && send_result(peer, request.initiator(), bytes, done) != -FI_EAGAIN)
    return;
  Service* service = make_service(peer, link, request);
  if (!service) return;
  service->answers = true;
  service->answered = done;
  if (lasting && bytes.length > transport::kAlwaysEager) {
    hold_regions(*service);
  } else if (!keep_copy(*service, bytes)) {
    drop_service(*service);
    return x_controls.send_fin(peer, request.initiator(), -FI_ENOMEM);
  }
  peer.services.push_back(*service);
  x_peers.backlog(peer);
}

bool Engine::keep_copy(Service& service, const Buffers& bytes) noexcept {
  Peer& peer = *service.peer;
  const size_t left = bytes.length - service.answered;
  if (peer.result_bytes + left > kMostResultBytes) return false;
  service.result.reset(new (std::nothrow) std::byte[left]);
  if (!service.result) return false;
  hmem::gather(service.result.get(), bytes.iov, bytes.count, service.answered, left);
  service.request.memory = {1, left, {{service.result.get(), left}}};
  service.answered = 0;
  peer.result_bytes += left;
  return true;
}

/// From `done` on, which it advances. -FI_EAGAIN: not all of it.
int Engine::send_result(Peer& peer, wire::RequestId initiator, const Buffers& bytes,
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
    if (rc != 0) return rc;
    done += part;
  }
  return 0;
}

}  // namespace erdma::protocol
