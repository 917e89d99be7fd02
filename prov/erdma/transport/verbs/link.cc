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
      x_sender ? x_sender->eager_limit() : Connection::kSmallReceiveBytes - kPacketOverhead;
  return {std::min(eager, x_core.options().eager_bytes),
          x_core.options().rendezvous == Rendezvous::read};
}

void VerbsLink::install(std::unique_ptr<Connection> connection) noexcept {
  const size_t at = slot(connection->active);
  x_connections[at] = std::move(connection);
  state = State::up;
  x_met = true;
  if (x_connections[at]->may_send()) may_send(*x_connections[at]);
}

std::unique_ptr<Connection> VerbsLink::remove(const Connection& connection) noexcept {
  may_not_send(connection);
  for (auto& owned : x_connections)
    if (owned.get() == &connection) return std::move(owned);
  return nullptr;
}

// To ourselves, packets take the connection that we made, and arrive on the one that we accepted.
void VerbsLink::may_send(Connection& connection) noexcept {
  if (!x_to_self || connection.active) x_sender = &connection;
}

void VerbsLink::may_not_send(const Connection& connection) noexcept {
  if (x_sender == &connection) x_sender = nullptr;
}

int VerbsLink::expose(const iovec* memory, size_t count, size_t length, Access access,
                      Exposure& exposure) noexcept {
  if (state == State::closed) return -FI_ESHUTDOWN;
  if (count > kMaxIov || hmem::total_length(memory, count) < length) return -FI_EINVAL;
  Exposed* exposed = x_core.exposures().acquire();
  if (!exposed) return -FI_ENOMEM;
  exposed->link = this;
  exposed->length = length;
  exposed->access = access;
  exposed->count = hmem::slice(memory, count, 0, length, exposed->memory);
  exposed->staged = exposed->count == 0 || register_all(x_core.cache(), exposed->memory,
                                                        exposed->count, exposed->registrations);
  RemoteMemory named;
  named.handle = x_core.exposures().handle(*exposed);
  named.staged = exposed->staged;
  named.length = length;
  named.count = exposed->staged ? 0 : exposed->count;
  for (size_t i = 0; i < named.count; ++i)
    named.pieces[i] = {uint64_t(exposed->memory[i].iov_base), exposed->memory[i].iov_len,
                       exposed->registrations[i].rkey};
  encode(named, exposure);
  // A message that would have fitted a bigger packet.
  if (length <= x_core.options().eager_bytes && x_sender) x_sender->want_more();
  return 0;
}

// What is registered stays accessible to a peer that breaks the rules; one that keeps them has said
// that it is done, or its connection is gone.
int VerbsLink::withdraw(const Exposure& exposure) noexcept {
  RemoteMemory named;
  if (!decode(exposure, named)) return 0;
  Exposed* exposed = x_core.exposures().find(named.handle);
  if (!exposed || exposed->link != this) return 0;
  if (!exposed->staged) release_all(x_core.cache(), exposed->registrations, exposed->count);
  x_core.exposures().release(*exposed);
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
  Transfer* begun = x_core.transfers().acquire();
  if (!begun) return -FI_EAGAIN;
  begun->token = token;
  begun->is_read = is_read;
  begun->length = length;
  begun->remote = named;
  prepare(*begun, local, count);
  if (!is_read && length <= x_core.options().eager_bytes) x_sender->want_more();
  x_sender->begin(*begun);
  return 0;
}

/// Its end here, for bulk.
void VerbsLink::prepare(Transfer& transfer, const iovec* local, size_t count) noexcept {
  transfer.count = hmem::slice(local, count, 0, transfer.length, transfer.local);
  transfer.bounces =
      !transfer.remote.staged &&
      register_all(x_core.cache(), transfer.local, transfer.count, transfer.registrations) != 0;
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
