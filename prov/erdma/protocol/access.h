#pragma once

#include "protocol/engine.h"

/// How the short way begins: no Send, no queue, and as few instructions as it takes. Part of the
/// entry points; what is not plain takes the long one (one_sided_initiator.cc).
namespace erdma::protocol {

inline bool Engine::post_access(const AccessArgs& args) noexcept {
  Peer* const peer = x_peers.known(args.destination);
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

}  // namespace erdma::protocol
