#include "transport/verbs/link.h"

#include <cstring>
#include <utility>

#include "hmem/copy.h"
#include "transport/verbs/core.h"

namespace erdma::transport::verbs {

int VerbsLink::not_ready() noexcept {
  if (state == State::closed) return -FI_ESHUTDOWN;
  return state == State::idle ? x_core.connect(*this) : -FI_EAGAIN;
}

LinkLimits VerbsLink::limits() const noexcept {
  const size_t eager =
      x_packets ? x_packets->eager_limit() : PacketReceiver::kSmallReceiveBytes - kPacketOverhead;
  return {std::min(eager, x_core.resources().options.eager_bytes),
          x_core.resources().options.rendezvous == Rendezvous::read};
}

void VerbsLink::install(std::unique_ptr<Connection> connection) noexcept {
  const size_t at = slot(connection->active);
  x_connections[at] = std::move(connection);
  state = State::up;
  x_met = true;
}

std::unique_ptr<Connection> VerbsLink::remove(const Connection& connection) noexcept {
  may_not_send(connection);
  for (auto& owned : x_connections)
    if (owned.get() == &connection) return std::move(owned);
  return nullptr;
}

// To ourselves, packets take the connection that we made, and arrive on the one that we accepted.
void VerbsLink::may_send(Connection& connection) noexcept {
  if (x_to_self && !connection.active) return;
  x_sender = &connection;
  x_packets = &connection.sender;
}

void VerbsLink::may_not_send(const Connection& connection) noexcept {
  if (x_sender == &connection) x_sender = nullptr, x_packets = nullptr;
}

int VerbsLink::expose(const iovec* memory, size_t count, size_t length, Access access,
                      Exposure& exposure) noexcept {
  if (state == State::closed) return -FI_ESHUTDOWN;
  if (count > kMaxIov || hmem::total_length(memory, count) < length) return -FI_EINVAL;
  Exposed* exposed = x_core.resources().exposures.acquire();
  if (!exposed) return -FI_ENOMEM;
  exposed->link = this;
  exposed->length = length;
  exposed->access = access;
  exposed->count = hmem::slice(memory, count, 0, length, exposed->memory);
  exposed->staged = exposed->count == 0 || register_all(x_core.resources().cache, exposed->memory,
                                                        exposed->count, exposed->registrations);
  RemoteMemory named;
  named.handle = x_core.resources().exposures.handle(*exposed);
  named.staged = exposed->staged;
  named.length = length;
  named.count = exposed->staged ? 0 : exposed->count;
  for (size_t i = 0; i < named.count; ++i)
    named.pieces[i] = {uint64_t(exposed->memory[i].iov_base), exposed->memory[i].iov_len,
                       exposed->registrations[i].rkey};
  encode(named, exposure);
  // A message that would have fitted a bigger packet.
  if (length <= x_core.resources().options.eager_bytes && x_sender) x_packets->want_more();
  return 0;
}

// What is registered stays accessible to a peer that breaks the rules; one that keeps them has said
// that it is done, or its connection is gone.
int VerbsLink::withdraw(const Exposure& exposure) noexcept {
  RemoteMemory named;
  if (!decode(exposure, named)) return 0;
  Exposed* exposed = x_core.resources().exposures.find(named.handle);
  if (!exposed || exposed->link != this) return 0;
  if (!exposed->staged)
    release_all(x_core.resources().cache, exposed->registrations, exposed->count);
  x_core.resources().exposures.release(*exposed);
  return 0;
}

int VerbsLink::transfer(const Exposure& remote, const iovec* local, size_t count, size_t length,
                        uint64_t token, bool is_read) noexcept {
  RemoteMemory named;
  if (!decode(remote, named) || named.length < length || count > kMaxIov ||
      hmem::total_length(local, count) < length)
    return -FI_EINVAL;
  if (!x_sender) return not_ready();
  if (length == 0) return x_core.defer_done(token);
  Transfer* begun = x_core.resources().transfers.acquire();
  if (!begun) return -FI_EAGAIN;
  begun->token = token;
  begun->is_read = is_read;
  begun->length = length;
  begun->remote = named;
  prepare(*begun, local, count);
  if (!is_read && length <= x_core.resources().options.eager_bytes) x_packets->want_more();
  x_sender->transfers.begin(*begun);
  return 0;
}

bool VerbsLink::opens_memory() const noexcept {
  return x_core.resources().device.fork_safe();
}

std::unique_ptr<OpenMemory> VerbsLink::open(const iovec& memory, bool for_reads,
                                            bool for_writes) noexcept {
  return open_region(x_core.resources().device, memory, for_reads, for_writes);
}

bool VerbsLink::resolve(const Exposure& memory, DeviceAddress& first) noexcept {
  RemoteMemory named;
  if (!decode(memory, named) || named.staged || named.count != 1) return false;
  first = {named.pieces[0].address, named.pieces[0].rkey};
  return true;
}

int VerbsLink::direct(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                      bool is_read, bool until_placed) noexcept {
  RemoteMemory named;
  if (!decode(remote.memory, named) || named.staged || named.count != 1 || remote.length == 0 ||
      remote.offset > named.length || remote.length > named.length - remote.offset ||
      count > kMaxIov || hmem::total_length(local, count) < remote.length)
    return -FI_EINVAL;
  if (!x_sender) return not_ready();
  Transfer* begun = x_core.resources().transfers.acquire();
  if (!begun) return -FI_EAGAIN;
  begun->token = token;
  begun->is_read = is_read;
  begun->flush_due = until_placed && !is_read;
  begun->length = begun->remote.length = remote.length;
  begun->remote.count = 1;
  begun->remote.pieces[0] = {named.pieces[0].address + remote.offset, remote.length,
                             named.pieces[0].rkey};
  x_packets->touch();
  if (!x_sender->direct.takes(remote.length, is_read)) {
    prepare(*begun, local, count);
    x_sender->transfers.begin(*begun);
    return 0;
  }
  begun->count = hmem::slice(local, count, 0, remote.length, begun->local);
  begun->bounces = true;
  const int rc = x_sender->direct.post(*begun);
  if (rc) x_core.resources().transfers.release(*begun);
  return rc;
}

/// Its end here, for bulk.
void VerbsLink::prepare(Transfer& transfer, const iovec* local, size_t count) noexcept {
  transfer.count = hmem::slice(local, count, 0, transfer.length, transfer.local);
  transfer.bounces =
      !transfer.remote.staged && register_all(x_core.resources().cache, transfer.local,
                                              transfer.count, transfer.registrations) != 0;
}

void VerbsLink::fail(int status) noexcept {
  for (const auto& connection : x_connections) {
    if (!connection) continue;
    connection->mute();
    x_core.break_connection(*connection, status, "the protocol's rules are broken");
  }
  if (!connected()) x_core.fail_unconnected(*this, status);
}

}  // namespace erdma::transport::verbs
