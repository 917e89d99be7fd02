#include "protocol/grants.h"

#include <new>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/inbound.h"
#include "protocol/rma_request.h"

namespace erdma::protocol {
namespace {

bool covers(const Grant& grant, const wire::Segment& segment) noexcept {
  return segment.address >= grant.address && segment.length <= grant.length &&
         segment.address - grant.address <= grant.length - segment.length;
}

/// Registration was tried and failed. It is not tried again.
bool cannot_open(const Region& region) noexcept {
  return region.register_tried && !region.registered;
}

/// Null: out of memory.
PeerGrants* grants_of(Peer& peer) noexcept {
  if (!peer.grants) peer.grants.reset(new (std::nothrow) PeerGrants);
  return peer.grants.get();
}

/// Registers or shares the region, whichever the link can do. False: neither is possible.
bool describe(const transport::OptionalInterfaces& link, Region& region, Granted& granted,
              transport::RemoteKey& memory) {
  const bool reads = region.access & FI_REMOTE_READ, writes = region.access & FI_REMOTE_WRITE;
  if (link.sharing) {
    if (region.device || link.sharing->share(region.iov[0], reads, writes, memory) != 0)
      return false;
    granted.sharing = link.sharing;
    granted.shared_key = memory;
    return true;
  }
  if (link.registrar && !region.device && !std::exchange(region.register_tried, true))
    if (auto made = link.registrar->open(region.iov[0], nullptr, reads, writes))
      region.registered = std::move(*made);
  if (region.registered) region.registered->describe(memory);
  return region.registered != nullptr;
}

}  // namespace

void Grants::on_packet(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
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

// --- the initiator's side -----------------------------------------------------------------------

Grant* Grants::permitting(Peer& peer, wire::Op op, const wire::Segment& segment) noexcept {
  if (peer.itself) grant_to_self(peer, segment.key);
  if (!peer.grants) return nullptr;
  const auto found = peer.grants->remote.find(segment.key);
  if (found == peer.grants->remote.end()) return nullptr;
  Grant& grant = found->second;
  const bool permitted = op == wire::Op::read ? grant.reads : grant.writes;
  return permitted && !grant.revoked && covers(grant, segment) ? &grant : nullptr;
}

/// Answers the revocation of a grant whose last user has left.
void Grants::give_back(Peer& peer, const Grant& grant) noexcept {
  const uint64_t key = grant.key;
  peer.grants->erase(peer.grants->remote.find(key));
  answer_revoke(peer, key, 0);
}

void Grants::on_grant(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                      const std::byte* payload, size_t length) noexcept try {
  const wire::Segment& segment = header.segment;
  transport::RemoteKey memory;
  const bool names_region = inbound::decode(payload, length, memory, true);
  if (!inbound::takes(link, inbound::judge_grant(segment, names_region ? length : 0),
                      "a malformed grant of direct access"))
    return;
  PeerGrants* const grants = grants_of(peer);
  if (!grants || peer.link != &link || grants->remote.size() >= PeerGrants::kMost) return;
  const auto [at, is_new] = grants->remote.try_emplace(segment.key);
  Grant& grant = at->second;
  if (!is_new && (grant.users > 0 || grant.revoked)) return;
  grant.key = segment.key;
  grant.address = segment.address;
  grant.length = segment.length;
  grant.reads = header.flags & wire::kGrantReads;
  grant.writes = header.flags & wire::kGrantWrites;
  grant.region = {};
  if (grants->recent == &grant) grants->recent = nullptr;
  grant.memory = memory;
} catch (const std::bad_alloc&) {
  // Operations continue to use packets.
}

void Grants::on_revoke(Peer& peer, transport::Link& link, uint64_t key) noexcept {
  if (link.optional().sharing) link.optional().sharing->on_revoked();
  if (peer.grants) {
    const auto found = peer.grants->remote.find(key);
    if (found != peer.grants->remote.end()) {
      found->second.revoked = true;
      // give_back() answers once more when the last operation ends.
      if (found->second.users > 0) return answer_revoke(peer, key, wire::kBusy);
      peer.grants->erase(found);
    }
  }
  answer_revoke(peer, key, 0);
}

void Grants::answer_revoke(Peer& peer, uint64_t key, uint8_t flags) noexcept {
  wire::OneSidedHeader header{};
  header.op = wire::Op::revoked;
  header.flags = flags;
  header.segment.key = key;
  x_controls.send(peer, header);
}

// --- the target's side --------------------------------------------------------------------------

/// The first operation on a region does not register it with the NIC, because it may be the last.
void Grants::after(Peer& peer, transport::Link& link, const Request& request) noexcept {
  if (request.memory.count != 1 || request.segment_count != 1) return;
  Region& region = *request.regions[0];
  const uint64_t key = request.segments[0].key;
  const bool first = !std::exchange(region.used, true);
  const transport::OptionalInterfaces& optional = link.optional();
  if (optional.registrar ? first || cannot_open(region) : !optional.sharing) return;
  if (peer.link != &link || peer.failing) return;
  if (x_setup->regions.region(key) == &region)  // not being closed
    grant(peer, link, key, region);
}

/// The processor does not see direct accesses, so regions and endpoints whose accesses are counted
/// are not granted. An endpoint's reads of its own device memory are: they flush.
bool Grants::grantable(const Peer& peer, const Region& region) const noexcept {
  if (region.iov_count != 1 || region.iov[0].iov_len == 0) return false;
  if (region.device && peer.itself) return true;
  return !region.counts() && !x_setup->remote_reads.counts() && !x_setup->remote_writes.counts();
}

void Grants::grant(Peer& peer, transport::Link& link, uint64_t key, Region& region) noexcept try {
  if (!grantable(peer, region)) return;
  PeerGrants* const grants = grants_of(peer);
  if (!grants || grants->granted.size() >= PeerGrants::kMost) return;
  const auto [at, is_new] = grants->granted.try_emplace(key);
  if (!is_new) return;
  transport::RemoteKey memory;
  if (!describe(link.optional(), region, at->second, memory))
    return (void)grants->granted.erase(at);
  at->second.use = RegionUse(region);
  const bool reads = region.access & FI_REMOTE_READ, writes = region.access & FI_REMOTE_WRITE;
  wire::OneSidedHeader header{};
  header.op = wire::Op::grant;
  header.flags = uint8_t((reads ? wire::kGrantReads : 0) | (writes ? wire::kGrantWrites : 0));
  header.segment = {reinterpret_cast<uint64_t>(region.iov[0].iov_base), key, region.iov[0].iov_len};
  if (!peer.itself) return x_controls.send(peer, header, &memory);
  on_grant(peer, link, header, memory.bytes, memory.size);
  grants->remote[key].flushes = region.device;
} catch (const std::bad_alloc&) {
  // Operations continue to use packets.
}

/// An endpoint's read from itself is ordered after earlier writes of the NIC only if the NIC
/// executes it. Therefore the first operation already gets a grant.
void Grants::grant_to_self(Peer& peer, uint64_t key) noexcept {
  if (peer.grants && peer.grants->remote.contains(key)) return;
  Region* const region = x_setup->regions.region(key);
  if (region && (region->registered || (peer.link->optional().registrar && !cannot_open(*region))))
    grant(peer, *peer.link, key, *region);
}

void Grants::revoke(uint64_t key) noexcept {
  wire::OneSidedHeader header{};
  header.op = wire::Op::revoke;
  header.segment.key = key;
  for (Peer* const peer : x_peers.all()) {
    if (!peer->grants) continue;
    const auto found = peer->grants->granted.find(key);
    if (found == peer->grants->granted.end()) continue;
    Granted& granted = found->second;
    granted.revoked = true;
    if (granted.sharing) granted.sharing->revoke(granted.shared_key);
    if (granted.sharing ? granted.sharing->unused() : peer->grants->slow)
      peer->grants->granted.erase(found);
    x_controls.send(*peer, header);
  }
}

/// Needs no memory. The iterator stays valid, because revoke() erases at most the entry that it is
/// called for.
void Grants::revoke_all() noexcept {
  for (Peer* const peer : x_peers.all()) {
    if (!peer->grants) continue;
    auto& granted = peer->grants->granted;
    for (auto next = granted.begin(); next != granted.end();) {
      const auto at = next++;
      if (!at->second.revoked) revoke(at->first);
    }
  }
}

void Grants::on_revoked(Peer& peer, const wire::OneSidedHeader& header) noexcept {
  if (!peer.grants) return;
  PeerGrants& grants = *peer.grants;
  grants.slow = false;
  const auto found = grants.granted.find(header.segment.key);
  if (found == grants.granted.end() || !found->second.revoked) return;
  Granted& granted = found->second;
  if (header.flags & wire::kBusy)
    granted.busy = true;
  else if (!granted.sharing || granted.sharing->unused())
    grants.granted.erase(found);
  // Else this is the answer to the revocation of an earlier region with the same key, or the peer
  // accesses another one.
}

void Grants::stop_waiting(uint64_t key, Await await) noexcept {
  for (Peer* const peer : x_peers.all()) {
    if (!peer->grants) continue;
    const auto found = peer->grants->granted.find(key);
    if (found == peer->grants->granted.end()) continue;
    const Granted& granted = found->second;
    if (!granted.revoked) continue;  // of another region, which has the key now
    const bool waits = await == Await::answers || (await == Await::busy_peers && granted.busy);
    if (granted.sharing ? !granted.sharing->unused() : waits) continue;
    if (!granted.sharing) peer->grants->slow = true;
    peer->grants->granted.erase(found);
  }
}

void Grants::abandon(const Region& region) noexcept {
  for (Peer* const peer : x_peers.all()) {
    if (!peer->grants) continue;
    for (const auto& [key, granted] : peer->grants->granted)
      if (granted.use.get() == &region && granted.sharing && !granted.sharing->unused())
        peer->link->fail(-FI_ETIMEDOUT);
  }
}

}  // namespace erdma::protocol
