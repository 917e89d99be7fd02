#pragma once

#include <cstdint>

#include "protocol/arguments.h"
#include "protocol/grants.h"
#include "protocol/peers.h"

namespace erdma::protocol {

/// The fast path of small writes and reads of memory that a peer has granted: without a Send and
/// without a queue. All other operations take the slow path (rma_initiator.h).
class FastRma {
 public:
  explicit FastRma(Grants& grants) noexcept : x_grants(grants) {}

  /// To be called before any operation. `setup` outlives this object.
  void enable(const OneSidedSetup& setup) noexcept { x_setup = &setup; }

  /// Returns whether the fast path may take the operation.
  static bool is_plain(const OneSidedArgs& args) noexcept;
  /// False: nothing happened; take the slow path.
  bool post(Peer& peer, const AccessArgs& args) noexcept;
  uint32_t in_use() const noexcept { return x_accesses.in_use(); }
  util::PoolHandle handle(Access& access) noexcept { return x_accesses.handle(access); }

  /// The NIC has executed the access, or failed.
  void on_done(util::PoolHandle handle, int status) noexcept;
  /// Fails the accesses to a peer whose link is down.
  void fail(Peer& peer, int status) noexcept;

 private:
  static Grant* find_grant(Peer& peer, uint64_t key) noexcept;
  void finish(Access& access, int status) noexcept;

  Grants& x_grants;
  const OneSidedSetup* x_setup = nullptr;
  util::Pool<Access> x_accesses;
};

[[gnu::always_inline]] inline bool FastRma::post(Peer& peer, const AccessArgs& args) noexcept {
  if (!peer.direct || !peer.grants || peer.one_sided_packets > 0 ||
      args.length - 1 >= transport::kAlwaysEager) [[unlikely]]
    return false;
  PeerGrants& grants = *peer.grants;
  if (grants.slow_path_only) return false;
  Grant* grant = grants.recent;
  if (!grant || grant->key != args.key) [[unlikely]]
    if (!(grant = find_grant(peer, args.key))) return false;
  const uint64_t offset = args.address - grant->address;
  const bool permitted = args.reads ? grant->reads : grant->writes && grants.reads == 0;
  if (!permitted || grant->revoked || offset >= grant->length ||
      args.length > grant->length - offset) [[unlikely]]
    return false;
  Access* const access = x_accesses.acquire();
  if (!access) [[unlikely]]
    return false;
  const uint64_t token = make_token(TokenOf::access, x_accesses.handle(*access));
  const int rc = args.reads ? grant->region.get(offset, args.local, args.length, token)
                            : grant->region.put(offset, args.local, args.length, token);
  if (rc != 0) [[unlikely]] {
    x_accesses.release(*access);
    return false;
  }
  access->peer = &peer;
  access->grant = grant;
  access->context = args.context;
  access->reads = args.reads;
  access->report = args.report;
  access->injected = args.inject;
  grants.accesses.push_back(*access);
  grant->fresh = false;
  ++grant->users;
  grants.reads += args.reads;
  return true;
}

}  // namespace erdma::protocol
