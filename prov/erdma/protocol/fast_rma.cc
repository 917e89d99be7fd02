#include "protocol/fast_rma.h"

#include <rdma/fabric.h>

#include "protocol/sends.h"

namespace erdma::protocol {

bool FastRma::is_plain(const OneSidedArgs& args) noexcept {
  const SendArgs& local = args.local;
  return args.op != wire::Op::atomic && args.segment_count == 1 && local.count == 1 &&
         args.segments[0].length == local.length && !local.has_data && !local.until_delivered &&
         !local.fence && !args.device;
}

/// Returns the grant of this key. Null: there is none, or the peer's link has no fast path.
[[gnu::noinline]] Grant* FastRma::find_grant(Peer& peer, uint64_t key) noexcept {
  const auto found = peer.grants->remote.find(key);
  if (found == peer.grants->remote.end()) return nullptr;
  Grant& grant = found->second;
  if (!grant.region) grant.region = {peer.link->optional().fast, grant.memory};
  peer.grants->slow_path_only = !grant.region;
  if (!grant.region) return nullptr;
  return peer.grants->recent = &grant;
}

[[gnu::flatten]] void FastRma::on_done(util::PoolHandle handle, int status) noexcept {
  if (Access* const access = x_accesses.find(handle)) finish(*access, status);
}

/// Every access ends here.
void FastRma::finish(Access& access, int status) noexcept {
  Peer& peer = *access.peer;
  Grant& grant = *access.grant;
  void* const context = access.context;
  const bool reads = access.reads, report = access.report, injected = access.injected;
  access.unlink();
  x_accesses.release(access);
  peer.grants->reads -= reads;
  x_grants.leave(peer, grant);
  CompletionSink& sink = reads ? x_setup->reads : x_setup->writes;
  const uint64_t flags = FI_RMA | (reads ? FI_READ : FI_WRITE);
  if (status != 0) [[unlikely]] {
    ErrorCompletion done(context, flags, -status);
    done.report = report;
    done.anonymous = injected && !report && !context;
    if (done.anonymous) Sends::lose_injected(peer, status);
    return sink.fail(done);
  }
  sink.succeed(report) = {context, flags, 0, nullptr, 0, 0, UINT64_MAX};
}

void FastRma::fail(Peer& peer, int status) noexcept {
  if (!peer.grants) return;
  while (Access* access = peer.grants->accesses.front()) finish(*access, status);
}

}  // namespace erdma::protocol
