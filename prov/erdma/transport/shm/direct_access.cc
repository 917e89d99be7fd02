#include "transport/shm/direct_access.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/link_context.h"
#include "transport/shm/mail.h"

namespace erdma::transport::shm {
namespace {

/// Up to this length one call moves the bytes at once. Longer accesses move in poll(), where a
/// polling peer helps.
constexpr size_t kAtOnce = size_t{32} * 1024;

bool is_region(const RemoteKey& remote_key) noexcept {
  return remote_key.kind() == KeyKind::region && remote_key.size == sizeof(SharedRegion);
}

SharedRegion decode(const RemoteKey& remote_key) noexcept {
  SharedRegion region;
  std::memcpy(&region, remote_key.bytes, sizeof(region));
  return region;
}

bool contains(const SharedRegion& region, const RemoteRange& part) noexcept {
  return region.address != 0 && region.address + region.length >= region.address &&
         part.offset <= region.length && part.length <= region.length - part.offset;
}

void keep_reported(CmaVerdict& now, const CmaVerdict& before) noexcept {
  if (now.permission == before.permission && now.error == before.error)
    now.reported = now.reported || before.reported;
}

}  // namespace

void DirectAccess::learn(const Mail& mail) noexcept {
  const CmaPeer before = std::exchange(x_peer, mail.cma);
  x_peer.life = before.life;
  // A link that was reset, and a verdict about the other call, repeat no warning.
  if (before.identity().nonce == x_peer.identity().nonce) {
    keep_reported(x_peer.read, before.read);
    keep_reported(x_peer.write, before.write);
  }
  x_final = mail.cma_final;
  if (mail.cma_final) report_refusals(x_peer, x_link.out().counters());
}

bool DirectAccess::possible() const noexcept {
  return x_link.context().options.cma && x_link.in() && x_link.phase().state != LinkState::ending;
}

bool DirectAccess::unused() noexcept {
  return !x_link.in() || !x_link.in()->regions_in_use();
}

int DirectAccess::share(const iovec& memory, bool for_reads, bool for_writes,
                        RemoteKey& remote_key) noexcept {
  if (!possible()) return -FI_EOPNOTSUPP;
  if (!x_shared_regions) x_shared_regions.reset(new (std::nothrow) SharedRegions);
  if (!x_shared_regions) return -FI_ENOMEM;
  if (x_link.out().bulk()) x_link.out().bulk()->shares(x_shared_regions.get());
  SharedRegion region = x_shared_regions->share(memory, for_reads, for_writes);
  region.link = x_link_number;
  remote_key.put(region);
  return 0;
}

void DirectAccess::revoke(const RemoteKey& remote_key) noexcept {
  if (!is_region(remote_key)) return;
  ++x_revocations_made;
  if (x_link.in()) x_link.in()->owner_gate().revoke_region();
  const uint64_t id = x_shared_regions ? x_shared_regions->revoke(decode(remote_key)) : 0;
  if (id && x_link.out().bulk()) x_link.out().bulk()->taken_back(id);
}

void DirectAccess::on_revoked() noexcept {
  ++x_revocations_seen;
  if (x_link.out().up()) x_link.out().peer_gate().region_revoked();
}

int DirectAccess::access(CmaCall call, const RemoteRange& remote, const iovec* local, size_t count,
                         uint64_t token) noexcept {
  LinkContext& context = x_link.context();
  OutChannel& out = x_link.out();
  if (!context.options.cma) return -FI_EOPNOTSUPP;
  if (!is_region(remote.memory) || remote.length == 0) return -FI_EINVAL;
  const SharedRegion region = decode(remote.memory);
  if (!contains(region, remote) || count > kMaxIov ||
      hmem::total_length(local, count) < remote.length)
    return -FI_EINVAL;
  const Permission permission = x_peer.verdict(call).permission;
  if (permission == Permission::denied && x_final) return -FI_EOPNOTSUPP;
  if (permission != Permission::allowed || !x_link.in() || !out.up() || out.stopped())
    return -FI_EBUSY;
  PeerGate& peer_gate = out.peer_gate();
  peer_gate.belongs_to(region.link);
  if (!peer_gate.enter()) return -FI_EBUSY;
  int error = 0;
  Target target = Target::peer;
  Counters& counters = out.counters();
  if (remote.length <= kAtOnce) {
    const iovec there{remote_address(region.address + remote.offset), remote.length};
    error = move_by_cma(context.calls, call, x_peer, {local, count}, {&there, 1}, 0, remote.length,
                        call == CmaCall::read ? counters.cma_read_bytes : counters.cma_write_bytes,
                        target);
  }
  peer_gate.leave();
  if (remote.length > kAtOnce)
    return x_link.in()->access(call, region, remote.offset, local, count, remote.length, token);
  // While the pid may belong to another process, it is unknown whose memory was accessed: the link
  // will end.
  if (error == ESRCH || (error == 0 && !was_reached(context.calls, call, x_peer, target)))
    return -FI_EBUSY;
  if (error == 0) {
    context.rma_timer.accessed(x_link.optional().retractable, remote.length);
    counters.region_bytes += remote.length;
    return kDone;
  }
  const Failure failure = classify(error);
  if (failure == Failure::permission) deny(x_peer, call, error, counters);
  return failure == Failure::transient ? -FI_EBUSY : -FI_EOPNOTSUPP;
}

void DirectAccess::end() noexcept {
  if (x_link.out().bulk()) x_link.out().bulk()->shares(nullptr);
  x_shared_regions.reset();
  x_peer.life = nullptr;
  x_revocations_seen = x_revocations_made = 0;
  ++x_link_number;
}

}  // namespace erdma::transport::shm
