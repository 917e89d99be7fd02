// The short way of a small write or read of memory that a peer has granted: what is rare in its
// beginning (protocol/access.h), and its end.
#include <rdma/fabric.h>

#include "protocol/access.h"

namespace erdma::protocol {

bool Engine::is_plain(const OneSidedArgs& args) const noexcept {
  const SendArgs& local = args.local;
  return args.op != wire::Op::atomic && args.segment_count == 1 && local.count == 1 &&
         args.segments[0].length == local.length && !local.has_data && !local.until_delivered &&
         !local.fence && !args.device && (!local.inject || local.length <= x_config.inject_size);
}

/// A grant that has a short way over the peer's link. Null: none.
[[gnu::noinline]] Grant* Engine::recall(Peer& peer, uint64_t key) noexcept {
  const auto found = peer.grants->ours.find(key);
  if (found == peer.grants->ours.end()) return nullptr;
  Grant& grant = found->second;
  if (grant.link != peer.link) {
    peer.grants->long_way = !peer.link->resolve(grant.memory, grant.first);
    if (peer.grants->long_way) return nullptr;
    grant.link = peer.link;
    grant.key = key;
  }
  return peer.grants->recent = &grant;
}

[[gnu::flatten]] void Engine::on_access_done(util::PoolHandle handle, int status) noexcept {
  if (Access* const access = x_accesses.find(handle)) finish_access(*access, status);
}

/// The one place where an access ends.
void Engine::finish_access(Access& access, int status) noexcept {
  Peer& peer = *access.peer;
  Grant& grant = *access.grant;
  void* const context = access.context;
  const bool reads = access.reads, report = access.report, injected = access.injected;
  util::IntrusiveList<Access>::erase(access);
  x_accesses.release(access);
  peer.grants->reads -= reads;
  if (--grant.users == 0 && grant.revoked) [[unlikely]]
    give_back(peer, grant);
  CompletionSink& sink = reads ? x_one_sided_setup->reads : x_one_sided_setup->writes;
  const uint64_t flags = FI_RMA | (reads ? FI_READ : FI_WRITE);
  if (status != 0) [[unlikely]] {
    ErrorCompletion done;
    done.context = context;
    done.flags = flags;
    done.report = report;
    done.error = -status;
    done.anonymous = injected && !report && !context;
    if (done.anonymous) lose_injected(peer, status);
    return sink.fail(done);
  }
  sink.succeed(report) = {context, flags, 0, nullptr, 0, 0, UINT64_MAX};
}

/// A revoked grant that nobody uses any more.
void Engine::give_back(Peer& peer, const Grant& grant) noexcept {
  const uint64_t key = grant.key;
  peer.grants->erase(peer.grants->ours.find(key));
  answer_revoke(peer, key, 0);
}

}  // namespace erdma::protocol
