// The short way of a small write or read of memory that a peer has granted: no Send, no queue, and
// as few instructions as it takes. What is not plain takes the long one (one_sided_initiator.cc).
#include <rdma/fabric.h>

#include "protocol/engine.h"

namespace erdma::protocol {

bool Engine::is_plain(const OneSidedArgs& args) const noexcept {
  const SendArgs& local = args.local;
  return args.op != wire::Op::atomic && args.segment_count == 1 && local.count == 1 &&
         args.segments[0].length == local.length && !local.has_data && !local.until_delivered &&
         !local.fence && !args.device && (!local.inject || local.length <= x_config.inject_size);
}

bool Engine::post_access(const AccessArgs& args) noexcept {
  Peer* const peer = x_table.find(args.destination);
  if (!peer || !peer->direct || !peer->grants || peer->one_sided_packets > 0 || sends_full() ||
      args.length - 1 >= transport::kAlwaysEager || x_sends_since_progress + 1 >= kSendsPerProgress)
      [[unlikely]]
    return false;
  Grants& grants = *peer->grants;
  if (grants.long_way) return false;
  Grant* grant = grants.recent;
  if (!grant || grant->key != args.key || grant->link != peer->link) [[unlikely]]
    if (!(grant = recall(*peer, args.key))) return false;
  const uint64_t offset = args.address - grant->address;
  const bool permitted = args.reads ? grant->reads : grant->writes && grants.reads == 0;
  if (!permitted || grant->revoked || offset >= grant->length ||
      args.length > grant->length - offset) [[unlikely]]
    return false;
  Access* const access = x_accesses.acquire();
  if (!access) [[unlikely]]
    return false;
  const uint64_t token = token_of(x_accesses.handle(*access)) | kAccessToken;
  const transport::DeviceAddress remote{grant->first.address + offset, grant->first.key};
  const int rc = args.reads ? peer->link->read_short(remote, args.local, args.length, token)
                            : peer->link->write_short(remote, args.local, args.length, token);
  if (rc != 0) [[unlikely]] {
    x_accesses.release(*access);
    return false;
  }
  ++x_sends_since_progress;
  access->peer = peer;
  access->grant = grant;
  access->context = args.context;
  access->reads = args.reads;
  access->report = args.report;
  access->injected = args.inject;
  peer->accesses.push_back(*access);
  grant->fresh = false;
  ++grant->users;
  grants.reads += args.reads;
  return true;
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

void Engine::on_access_done(util::PoolHandle handle, int status) noexcept {
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
