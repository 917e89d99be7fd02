#include "transport/verbs/link.h"

#include "hmem/copy.h"
#include "transport/verbs/link_manager.h"
#include "transport/verbs/worklist.h"

namespace erdma::transport::verbs {
namespace {

/// True if PacketSender::send() would accept a packet of the protocol now. Asks the peer for
/// credits if they are lacking.
bool has_room_for_packet(PacketSender& packets) noexcept {
  if (!packets.credits().may_send()) packets.want_more();
  return packets.credits().may_send() && packets.queue().room() > PacketSender::kReservedPlaces &&
         !packets.due().any();
}

/// Keeps the reason why memory was not registered. False: DirectSource could register this memory
/// of a GPU a moment ago, and now it cannot.
[[gnu::cold, gnu::noinline]] bool may_bounce(RegistrationCache& cache, SharedMemory& shared,
                                             int rc) noexcept {
  shared.refusal = copy_reason_of(cache, shared.memory, shared.count, rc);
  return cache.copies(shared.memory, shared.count);
}

}  // namespace

bool LinkFastAccess::unpack(const RemoteKey& remote, DeviceAddress& first) noexcept {
  RemoteMemory named;
  if (!decode(remote, named) || !named.region) return false;
  first = {named.pieces[0].address, named.pieces[0].rkey};
  return true;
}

int VerbsLink::not_ready() noexcept {
  if (x_state == LinkState::closed) return -FI_ESHUTDOWN;
  return x_state == LinkState::idle ? x_manager.connect(*this) : -FI_EAGAIN;
}

void VerbsLink::fail(int status) noexcept {
  x_manager.fail(*this, status);
}

LinkReport VerbsLink::report() noexcept {
  constexpr const char* kStates[] = {"idle", "waiting", "connecting", "up", "closed"};
  return {"nic", kStates[size_t(x_state)], x_packets ? x_packets->credits().available() : 0};
}

LinkLimits VerbsLink::limits() const noexcept {
  const size_t eager =
      x_packets ? x_packets->eager_limit() : PacketReceiver::kSmallReceiveBytes - kPacketOverhead;
  return {std::min(eager, x_shared.options.eager_bytes),
          x_shared.options.rendezvous == Rendezvous::read};
}

void VerbsLink::install(std::unique_ptr<Connection> connection) noexcept {
  const bool receives_only = x_to_self && !connection->active;
  x_connections[receives_only] = std::move(connection);
  if (!receives_only) x_was_up = true;
}

std::unique_ptr<Connection> VerbsLink::remove(const Connection& connection) noexcept {
  for (auto& owned : x_connections)
    if (owned.get() == &connection) return std::move(owned);
  return nullptr;
}

// To this endpoint itself, packets leave on the connection that it made and arrive on the one that
// it accepted.
void VerbsLink::use(Connection& connection, bool may_send) noexcept {
  if (x_to_self && !connection.active) return;
  if (!may_send && x_fast.sender != &connection) return;
  x_fast.sender = may_send ? &connection : nullptr;
  x_packets = may_send ? &connection.sender : nullptr;
}

int VerbsLink::share(const iovec* memory, size_t count, size_t length, Access access,
                     RemoteKey& remote_key) noexcept {
  if (x_state == LinkState::closed) return -FI_ESHUTDOWN;
  if (count > kMaxIov || hmem::total_length(memory, count) < length) return -FI_EINVAL;
  // The key would have to wait for room, and a waiting operation may revoke it; the memory would
  // then be registered anew at each attempt.
  if (x_shared.cache.registers_each_time()) {
    if (!x_packets) return not_ready();
    if (!has_room_for_packet(*x_packets)) return -FI_EAGAIN;
  }
  SharedMemory* shared = x_shared.shared_memory.acquire();
  if (!shared) return -FI_ENOMEM;
  shared->link = this;
  shared->length = length;
  shared->access = access;
  shared->count = hmem::slice(memory, count, 0, length, shared->memory);
  int rc = 0;
  shared->bounced =
      shared->count == 0 || (rc = register_all(x_shared.cache, shared->memory, shared->count,
                                               rights_of(access), shared->registrations));
  if (shared->bounced && !may_bounce(x_shared.cache, *shared, rc)) {
    x_shared.shared_memory.release(*shared);
    return -FI_EAGAIN;
  }
  encode(shared->named(x_shared.shared_memory.handle(*shared)), remote_key);
  // This message would have fitted into a larger packet.
  if (length <= x_shared.options.eager_bytes && x_fast.sender) x_packets->want_more();
  return 0;
}

// Registered memory stays accessible to a peer that breaks the rules. A peer that keeps them has
// reported that it is done, or its connection is gone.
int VerbsLink::revoke(const RemoteKey& remote_key) noexcept {
  RemoteMemory named;
  if (!decode(remote_key, named)) return 0;
  SharedMemory* shared = x_shared.shared_memory.find(named.handle);
  if (!shared || shared->link != this) return 0;
  if (!shared->bounced) release_all(x_shared.cache, shared->registrations, shared->count);
  x_shared.shared_memory.release(*shared);
  return 0;
}

int VerbsLink::transfer(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                        bool is_read, bool until_placed) noexcept {
  RemoteMemory named;
  const uint64_t length = remote.length;
  if (!decode(remote.memory, named) || named.length < length || count > kMaxIov ||
      hmem::total_length(local, count) < length ||
      (named.region ? length == 0 || remote.offset > named.length - length : remote.offset > 0))
    return -FI_EINVAL;
  if (!x_fast.sender) return not_ready();
  if (length == 0) {
    x_worklist.attention = true;
    return x_worklist.dones.add(token, 0);
  }
  Transfer* begun = x_shared.transfers.acquire();
  if (!begun) return -FI_EAGAIN;
  begun->token = token;
  begun->is_read = is_read;
  begun->length = length;
  begun->remote = named;
  if (named.region) return access(*begun, remote.offset, local, count, until_placed && !is_read);
  if (!is_read && length <= x_shared.options.eager_bytes) x_packets->want_more();
  return begin(*begun, local, count);
}

/// -FI_EAGAIN: nothing happened.
int VerbsLink::begin(Transfer& begun, const iovec* local, size_t count) noexcept {
  if (x_fast.sender->transfers.begin(begun, local, count)) return 0;
  x_shared.transfers.release(begun);
  return -FI_EAGAIN;
}

/// An access to a region. -FI_EAGAIN: nothing happened.
int VerbsLink::access(Transfer& begun, uint64_t offset, const iovec* local, size_t count,
                      bool until_placed) noexcept {
  begun.proof_due = until_placed;
  begun.remote.length = begun.remote.pieces[0].length = begun.length;
  begun.remote.pieces[0].address += offset;
  x_packets->touch();
  if (!x_fast.sender->direct.takes(begun.length, begun.is_read)) {
    return begin(begun, local, count);
  }
  begun.count = hmem::slice(local, count, 0, begun.length, begun.local);
  begun.bounces = true;
  const int rc = x_fast.sender->direct.post(begun);
  if (rc) x_shared.transfers.release(begun);
  return rc;
}

}  // namespace erdma::transport::verbs
