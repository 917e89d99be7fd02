#include "transport/shm/connections.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "transport/shm/unix_socket.h"
#include "transport/version.h"
#include "util/random_word.h"

namespace erdma::transport::shm {

Connections::Connections(const ConnectorConfig& with, EndpointThread& watched_by) noexcept
    : config(with),
      nonce(util::random_word()),
      boot(boot_id_hash()),
      x_thread(watched_by),
      x_identity(with.calls->identity()) {}

util::SocketAddress Connections::canonical(const util::SocketAddress& address) const noexcept {
  if (config.options.scope != NameScope::host) return address;
  util::SocketAddress result = config.name;
  result.set_port(address.port());
  return result;
}

Greeting Connections::greeting() const noexcept {
  Greeting greeting;
  greeting.protocol_version = config.options.protocol_version;
  greeting.name_bytes = uint32_t(config.name.size());
  std::memcpy(greeting.name, config.name.data(), config.name.size());
  greeting.expedited = config.expedited;
  greeting.nonce = nonce;
  greeting.boot = boot;
  greeting.wake_socket = config.wake_socket;
  greeting.identity = x_identity;
  return greeting;
}

std::string fault_of(const Greeting& theirs, bool whole, const Greeting& ours) {
  if (theirs.magic != kMagic) return "it does not speak this protocol";
  if (theirs.byte_order != kByteOrder) return "its byte order is another";
  if (theirs.version != ours.version)
    return "it speaks " + version_fault("control messages", theirs.version, ours.version);
  if (theirs.protocol_version != ours.protocol_version)
    return "it speaks " + version_fault("protocol", theirs.protocol_version, ours.protocol_version);
  if (!whole) return "its greeting is malformed";
  if (theirs.geometry != kGeometry) return "its shared-memory layout is another";
  if (theirs.boot != ours.boot) return "it runs on another host";
  if (!name_of(theirs).set() || !name_of(theirs).port()) return "it has no name";
  return {};
}

Connection& Connections::add(util::Ref<Connection> connection) {
  Connection& added = *connection;
  added.id = x_next_id++;
  x_connections.add(std::move(connection));
  if (added.state == ConnectionState::awaiting_hello) ++x_pending_hellos;
  return added;
}

util::Ref<Connection> Connections::find(uint64_t id) const noexcept {
  return x_connections.find(id);
}

util::SocketAddress Connections::address_of(const Connection& connection) const noexcept {
  return connection.attempt ? connection.attempt->request.address
                            : canonical(connection.process->name);
}

void Connections::forget_attempt(Connection& connection) const noexcept {
  if (!connection.outbound ||
      canonical(connection.process->name) == connection.attempt->request.address)
    connection.attempt.reset();
}

util::Ref<Connection> Connections::outbound_to(const util::SocketAddress& address) const noexcept {
  for (const auto& connection : x_connections)
    if (connection->outbound && connection->state != ConnectionState::hung_up &&
        address_of(*connection) == address)
      return connection;
  return nullptr;
}

util::Ref<Connection> Connections::closed_here() const noexcept {
  for (const auto& connection : x_connections)
    if (connection->closed.load() && connection->state != ConnectionState::leaving)
      return connection;
  return nullptr;
}

void Connections::drop(Connection& connection) noexcept {
  if (!x_connections.erase(connection.id)) return;
  unwatch(connection);
  if (connection.state == ConnectionState::awaiting_hello) --x_pending_hellos, ++strangers;
  PeerProcess* process = connection.process.get();
  if (!process) return;
  if (--process->connections > 0) return;
  unwatch_exit(*process);
  x_processes.erase(process->id);
}

void Connections::unwatch_exit(const PeerProcess& process) noexcept {
  if (process.life().pidfd() >= 0) x_thread.unwatch(process.life().pidfd());
}

int Connections::watch(const Connection& connection, uint32_t what) noexcept {
  return x_thread.watch(connection.socket.get(), event_of(kSocket, connection.id), what);
}

void Connections::unwatch(const Connection& connection) noexcept {
  if (connection.socket) x_thread.unwatch(connection.socket.get());
}

void Connections::go_up(Connection& connection) noexcept {
  if (connection.state == ConnectionState::awaiting_hello) --x_pending_hellos, strangers = 0;
  connection.state = ConnectionState::up;
  connection.deadline = 0;
}

uint64_t Connections::next_deadline() const noexcept {
  uint64_t next = UINT64_MAX;
  for (const auto& connection : x_connections)
    if (connection->deadline) next = std::min(next, connection->deadline);
  return next;
}

std::vector<util::Ref<Connection>> Connections::due(uint64_t now) const {
  std::vector<util::Ref<Connection>> result;
  for (const auto& connection : x_connections)
    if (connection->deadline && connection->deadline <= now) result.push_back(connection);
  return result;
}

std::vector<util::Ref<Connection>> Connections::silent_since(uint64_t time) const {
  std::vector<util::Ref<Connection>> result;
  for (const auto& connection : x_connections) {
    if (connection->state != ConnectionState::awaiting_hello ||
        connection->attempt->started >= time)
      continue;
    pollfd hello{connection->socket.get(), POLLIN, 0};
    if (::poll(&hello, 1, 0) == 0) result.push_back(connection);
  }
  return result;
}

int Connections::find_or_add_process(Connection& connection, const Greeting& theirs,
                                     const char** why) {
  const int socket = connection.socket.get();
  const pid_t pid = config.calls->pid_of(socket, name_of(theirs));
  util::Ref<PeerProcess> process = process_of(theirs.nonce);
  if (process && (process->cma.pid != pid || !(process->name == name_of(theirs)))) {
    *why = "it claims to be another process";
    return -FI_EACCES;
  }
  if (process) {
    process->life().resume();
  } else {
    auto known = add_process(socket, pid, theirs, why);
    if (!known) return known.error();
    process = std::move(*known);
  }
  // The process that answers under a requested name listens under it.
  process->proven = process->proven || connection.name_proven ||
                    (connection.outbound && canonical(process->name) == address_of(connection));
  ++process->connections;
  connection.process = std::move(process);
  return 0;
}

/// On failure returns the error, and the reason in `why`.
util::Result<util::Ref<PeerProcess>> Connections::add_process(int socket, pid_t pid,
                                                              const Greeting& theirs,
                                                              const char** why) {
  auto waker = Waker::to(theirs.wake_socket);
  if (!waker) {
    *why = waker.error() == -FI_EMFILE ? "too many open files here; raise RLIMIT_NOFILE (ulimit -n)"
                                       : "it cannot be woken";
    return waker.error();
  }
  auto pidfd = config.calls->pidfd_of(socket, pid);
  if (!pidfd) {
    *why = "its process is gone";
    return pidfd.error();
  }
  auto process = util::make_ref<PeerProcess>();
  process->name = name_of(theirs);
  process->nonce = theirs.nonce;
  process->id = x_next_id++;
  process->expedited = theirs.expedited;
  process->waker = std::move(*waker);
  process->cma.process =
      util::make_ref<CmaProcess>(std::move(*pidfd), *config.clock, theirs.identity);
  process->cma.pid = pid;
  probe(*config.calls, config.options.cma, process->cma);
  // Without the watch, a child that holds the socket would hide the death of the process.
  if (const int fd = process->life().pidfd(); fd >= 0)
    if (x_thread.watch(fd, event_of(kProcess, process->id))) throw std::bad_alloc();
  x_processes.add(process);
  return process;
}

util::Ref<PeerProcess> Connections::process_of(uint64_t nonce_of_it) const noexcept {
  for (const auto& process : x_processes)
    if (process->nonce == nonce_of_it) return process;
  return nullptr;
}

util::Ref<PeerProcess> Connections::process(uint64_t id) const noexcept {
  return x_processes.find(id);
}

}  // namespace erdma::transport::shm
