// RMA without the target's processor. A target that has executed an operation on a region grants
// its peer direct access; from then on the initiator checks key, range and right itself, and what
// does not fit the grant goes by packets, so that the target refuses it.
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/engine.h"

namespace erdma::protocol {
namespace {

/// Of that little, the order of posting is kept: fi_ep_attr::max_order_*_size.
bool is_ordered(const Send& send) noexcept {
  return send.buffers.length <= transport::kAlwaysEager;
}

bool covers(const Grant& grant, const wire::Segment& segment) noexcept {
  return segment.address >= grant.address && segment.length <= grant.length &&
         segment.address - grant.address <= grant.length - segment.length;
}

}  // namespace

// --- the initiator's side -----------------------------------------------------------------------

/// A device may execute what follows a READ before it: FI_ORDER_WAR is kept by waiting.
bool Engine::overtakes_read(const Send& send) const noexcept {
  const Grants* const grants = send.peer->grants.get();
  if (!grants || grants->reads == 0) return false;
  const wire::Op op = send.one_sided->op;
  return op == wire::Op::atomic || (op == wire::Op::write && is_ordered(send));
}

/// Of nothing: a read of that from oneself may be meant to flush.
Grant* Engine::flush_grant(const Send& send) noexcept {
  const bool bare =
      send.one_sided->op == wire::Op::read && x_config.device_memory && send.peer->itself;
  Grant* const grant = bare ? permitting_grant(send) : nullptr;
  return grant && grant->flushes ? grant : nullptr;
}

/// Null: it goes by packets.
Grant* Engine::usable_grant(const Send& send) noexcept {
  const OneSided& op = *send.one_sided;
  const wire::Segment& segment = op.segments[0];
  const size_t length = send.buffers.length;
  if (op.op == wire::Op::atomic || op.segment_count != 1 || send.wire_flags & wire::kHasData ||
      segment.length != length)
    return nullptr;
  if (length == 0) [[unlikely]]
    return flush_grant(send);
  return permitting_grant(send);
}

/// Of those of its peer; null: there is none for this.
inline Grant* Engine::permitting_grant(const Send& send) noexcept {
  const OneSided& op = *send.one_sided;
  const wire::Segment& segment = op.segments[0];
  Peer& peer = *send.peer;
  if (peer.itself) grant_to_self(peer, segment.key);
  if (!peer.grants) return nullptr;
  const auto found = peer.grants->ours.find(segment.key);
  if (found == peer.grants->ours.end()) return nullptr;
  Grant& grant = found->second;
  const bool permitted = op.op == wire::Op::read ? grant.reads : grant.writes;
  return permitted && !grant.revoked && covers(grant, segment) ? &grant : nullptr;
}

/// -FI_EOPNOTSUPP: by packets. -FI_EAGAIN: nothing happened.
int Engine::launch_direct(Send& send) noexcept {
  Grant* const grant = usable_grant(send);
  if (!grant) return -FI_EOPNOTSUPP;
  if (const int rc = launch_retractable(send); rc != -FI_EOPNOTSUPP) return rc;
  return access(send, *grant);
}

int Engine::access(Send& send, Grant& granted) noexcept {
  Grant* const grant = &granted;
  Peer& peer = *send.peer;
  OneSided& op = *send.one_sided;
  // What packets carry is executed when the target looks. An unbroken row of operations waits for
  // them once; later ones among packets are packets, too.
  if (is_ordered(send) && peer.one_sided_packets > 0)
    return grant->fresh || grant->flushes ? -FI_EAGAIN : -FI_EOPNOTSUPP;
  if (send.buffers.length == 0) read_one_byte(send, *grant);
  const wire::Segment& segment = op.segments[0];
  const transport::RemoteRange remote{grant->memory, segment.address - grant->address,
                                      segment.length};
  const uint64_t token = token_of(x_sends.handle(send)) | kWriteToken;
  const Buffers& memory = send.buffers;
  const int rc =
      op.op == wire::Op::read
          ? peer.link->read_direct(remote, memory.iov, memory.count, token)
          : peer.link->write_direct(remote, memory.iov, memory.count, token, op.until_placed);
  if (rc == -FI_EBUSY) return -FI_EOPNOTSUPP;
  if (rc == -FI_EOPNOTSUPP || rc == -FI_EINVAL) {  // the grant is of another link, or nonsense
    (op.op == wire::Op::read ? grant->reads : grant->writes) = false;
    return -FI_EOPNOTSUPP;
  }
  if (rc != 0 && rc != transport::kDone) return rc;
  grant->fresh = false;
  if (rc == transport::kDone) {
    finish_send(send, 0);
    return 0;
  }
  ++grant->users;
  if (op.op == wire::Op::read && is_ordered(send)) ++peer.grants->reads;
  op.way = OneSided::Way::direct;
  send.state = Send::State::writing;
  peer.flying.push_back(send);
  return 0;
}

/// It was under way, and the link can't go on with it: packets can, from the start.
void Engine::retry_direct(Send& send, int status) noexcept {
  Peer& peer = *send.peer;
  OneSided& op = *send.one_sided;
  // As long as it is a user of its grant, that exists.
  const auto found = peer.grants->ours.find(op.segments[0].key);
  if (status == -FI_EOPNOTSUPP)
    (op.op == wire::Op::read ? found->second.reads : found->second.writes) = false;
  leave_way(send);
  op.way = OneSided::Way::none;
  util::IntrusiveList<Send>::erase(send);
  send.state = Send::State::queued;
  peer.queued.push_front(send);
  x_peers.backlog(peer);
}

/// A read of nothing orders nothing: it takes a byte of the region with it, to nowhere.
void Engine::read_one_byte(Send& send, const Grant& grant) noexcept {
  wire::Segment& segment = send.one_sided->segments[0];
  segment.address = std::min(segment.address, grant.address + grant.length - 1);
  segment.length = send.buffers.length = 1;
  send.buffers.count = 1;
  send.buffers.iov[0] = {&x_flush_sink, 1};
}

/// It ends, whichever way it went.
void Engine::leave_way(Send& send) noexcept {
  Peer& peer = *send.peer;
  const OneSided& op = *send.one_sided;
  if (op.way == OneSided::Way::packets) --peer.one_sided_packets;
  if (op.packet) {
    --peer.retractable;
    peer.grants->polls = peer.grants->pause = peer.grants->next_pause = 0;
  }
  if (op.way != OneSided::Way::direct) return;
  if (op.op == wire::Op::read && is_ordered(send)) --peer.grants->reads;
  const uint64_t key = op.segments[0].key;
  const auto found = peer.grants->ours.find(key);
  if (--found->second.users > 0 || !found->second.revoked) return;
  peer.grants->erase(found);
  answer_revoke(peer, key, 0);
}

void Engine::on_grant(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                      const std::byte* payload, size_t length) noexcept try {
  const wire::Segment& segment = header.segment;
  if (!inbound::takes(link, inbound::judge_grant(segment, length),
                      "a malformed grant of direct access"))
    return;
  Grants* const grants = grants_of(peer);
  if (!grants || peer.link != &link || grants->ours.size() >= Grants::kMost) return;
  const auto [at, is_new] = grants->ours.try_emplace(segment.key);
  Grant& grant = at->second;
  if (!is_new && (grant.users > 0 || grant.revoked)) return;
  grant.address = segment.address;
  grant.length = segment.length;
  grant.reads = header.flags & wire::kGrantReads;
  grant.writes = header.flags & wire::kGrantWrites;
  grant.link = nullptr;
  grant.memory.size = uint8_t(length);
  std::memcpy(grant.memory.bytes, payload, length);
} catch (const std::bad_alloc&) {
  // It goes on by packets.
}

void Engine::on_revoke(Peer& peer, transport::Link& link, uint64_t key) noexcept {
  link.recalled();
  if (peer.grants) {
    const auto found = peer.grants->ours.find(key);
    if (found != peer.grants->ours.end()) {
      found->second.revoked = true;
      // Once more with the end of the last of them.
      if (found->second.users > 0) return answer_revoke(peer, key, wire::kBusy);
      peer.grants->erase(found);
    }
  }
  answer_revoke(peer, key, 0);
}

void Engine::answer_revoke(Peer& peer, uint64_t key, uint8_t flags) noexcept {
  wire::OneSidedHeader header{};
  header.op = wire::Op::revoked;
  header.flags = flags;
  header.segment.key = key;
  x_controls.send(peer, header);
}

// --- the target's side --------------------------------------------------------------------------

/// An operation on the region succeeded. The first on a region is not worth a device's resources:
/// it may be the last.
void Engine::grant_after(Peer& peer, transport::Link& link, const Request& request) noexcept {
  if (request.memory.count != 1 || request.segment_count != 1) return;
  Region& region = *request.regions[0];
  const uint64_t key = request.segments[0].key;
  const bool first = !std::exchange(region.used, true);
  if (!(link.opens_memory() ? !first : link.lends_memory())) return;
  if (peer.link != &link || peer.failing) return;
  if (x_one_sided_setup->regions.region(key) == &region)  // not being closed
    grant(peer, link, key, region);
}

void Engine::grant(Peer& peer, transport::Link& link, uint64_t key, Region& region) noexcept try {
  if (region.iov_count != 1 || region.iov[0].iov_len == 0) return;
  const bool flushes = region.device && peer.itself;
  if (!flushes && (region.counts() || x_one_sided_setup->remote_reads.counts() ||
                   x_one_sided_setup->remote_writes.counts()))
    return;
  Grants* const grants = grants_of(peer);
  if (!grants || grants->theirs.size() >= Grants::kMost) return;
  const auto [at, is_new] = grants->theirs.try_emplace(key);
  if (!is_new) return;
  transport::Exposure memory;
  if (!describe(link, region, at->second, memory)) return (void)grants->theirs.erase(at);
  at->second.use = RegionUse(region);
  const bool reads = region.access & FI_REMOTE_READ, writes = region.access & FI_REMOTE_WRITE;
  wire::OneSidedHeader header{};
  header.op = wire::Op::grant;
  header.flags = uint8_t((reads ? wire::kGrantReads : 0) | (writes ? wire::kGrantWrites : 0));
  header.segment = {reinterpret_cast<uint64_t>(region.iov[0].iov_base), key, region.iov[0].iov_len};
  if (!peer.itself) return x_controls.send(peer, header, &memory);
  on_grant(peer, link, header, memory.bytes, memory.size);
  grants->ours[key].flushes = flushes;
} catch (const std::bad_alloc&) {
  // It goes on by packets.
}

/// Opens or lends it, as the link can. False: it can't be had.
bool Engine::describe(transport::Link& link, Region& region, Granted& granted,
                      transport::Exposure& memory) noexcept {
  const bool reads = region.access & FI_REMOTE_READ, writes = region.access & FI_REMOTE_WRITE;
  if (link.lends_memory()) {
    if (region.device || link.lend(region.iov[0], reads, writes, memory) != 0) return false;
    granted.lender = &link;
    granted.lent = memory;
    return true;
  }
  if (!std::exchange(region.open_tried, true))
    region.opened = link.open(region.iov[0], reads, writes);
  if (region.opened) region.opened->describe(memory);
  return region.opened != nullptr;
}

/// Reads from oneself order what the NIC wrote before: they all take its way, the first included.
void Engine::grant_to_self(Peer& peer, uint64_t key) noexcept {
  if (peer.grants && peer.grants->ours.contains(key)) return;
  Region* const region = x_one_sided_setup->regions.region(key);
  if (region && (region->opened || peer.link->opens_memory()))
    grant(peer, *peer.link, key, *region);
}

void Engine::revoke(uint64_t key) noexcept {
  wire::OneSidedHeader header{};
  header.op = wire::Op::revoke;
  header.segment.key = key;
  for (auto& [address, peer] : x_peers.all()) {
    if (!peer->grants) continue;
    const auto found = peer->grants->theirs.find(key);
    if (found == peer->grants->theirs.end()) continue;
    found->second.revoked = true;
    if (found->second.lender) found->second.lender->recall(found->second.lent);
    if (found->second.lender ? found->second.lender->unused() : peer->grants->tardy)
      peer->grants->theirs.erase(found);
    x_controls.send(*peer, header);
  }
}

void Engine::revoke_all() noexcept try {
  std::vector<uint64_t> keys;
  for (const auto& [address, peer] : x_peers.all())
    if (peer->grants)
      for (const auto& [key, use] : peer->grants->theirs) keys.push_back(key);
  for (const uint64_t key : keys) revoke(key);
} catch (const std::bad_alloc&) {
  for (const auto& [address, peer] : x_peers.all())
    if (peer->grants && peer->link) peer->link->fail(-FI_ENOMEM);
}

void Engine::on_revoked(Peer& peer, const wire::OneSidedHeader& header) noexcept {
  if (!peer.grants) return;
  Grants& grants = *peer.grants;
  grants.tardy = false;
  const auto found = grants.theirs.find(header.segment.key);
  if (found == grants.theirs.end() || !found->second.revoked) return;
  if (header.flags & wire::kBusy)
    found->second.busy = true;
  else
    grants.theirs.erase(found);
}

void Engine::stop_waiting(uint64_t key, bool all) noexcept {
  for (const auto& [address, peer] : x_peers.all()) {
    if (!peer->grants) continue;
    const auto found = peer->grants->theirs.find(key);
    if (found == peer->grants->theirs.end()) continue;
    const Granted& granted = found->second;
    if (granted.lender ? !granted.lender->unused() : granted.busy && !all) continue;
    if (!granted.lender) peer->grants->tardy = true;
    peer->grants->theirs.erase(found);
  }
}

void Engine::on_access(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                       const std::byte* payload, size_t length) noexcept {
  if (header.op != wire::Op::grant && length > 0)
    return inbound::protocol_violation(link, "bytes that belong to nothing");
  switch (header.op) {
    case wire::Op::grant:
      return on_grant(peer, link, header, payload, length);
    case wire::Op::revoke:
      return on_revoke(peer, link, header.segment.key);
    case wire::Op::revoked:
      return on_revoked(peer, header);
    default:
      return inbound::protocol_violation(link, "a packet of unknown kind");
  }
}

// --- both ---------------------------------------------------------------------------------------

Grants* Engine::grants_of(Peer& peer) noexcept {
  if (!peer.grants) peer.grants.reset(new (std::nothrow) Grants);
  return peer.grants.get();
}

}  // namespace erdma::protocol
