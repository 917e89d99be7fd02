#include "transport/shm/quarantine.h"

#include <poll.h>

#include "util/clock.h"

namespace erdma::transport::shm {
namespace {

/// Connections of one name, most of them in quarantine. An honest peer closes each as soon as it
/// polls, so it never has more than a few.
constexpr size_t kMaxOfOneName = 64;

/// The end of both directions is reported without being asked for.
constexpr uint32_t kSenderEnds = EPOLLRDHUP;

/// How long to wait where the kernel lacks memory to watch a socket.
constexpr uint64_t kUnwatchedPause = 100 * util::kMillisecond;

}  // namespace

void Quarantine::begin(Connection& connection) noexcept {
  connection.state = ConnectionState::lost;
  watch(connection);
}

void Quarantine::watch(Connection& connection) noexcept {
  connection.deadline = 0;
  if (x_connections.watch(connection, kSenderEnds))
    connection.deadline = x_connections.config.clock->now() + kUnwatchedPause;
}

void Quarantine::on_closed(Connection& connection) noexcept {
  if (!connection.chunk || !x_connections.find(connection.id))
    return x_connections.drop(connection);
  const bool watched = connection.state == ConnectionState::lost;
  connection.state = ConnectionState::leaving;
  if (connection.sender_done)
    on_sender_done(connection);
  else if (!watched)
    watch(connection);
}

void Quarantine::on_event(Connection& connection) noexcept {
  pollfd socket{connection.socket.get(), POLLRDHUP, 0};
  if (::poll(&socket, 1, 0) == 1 && (socket.revents & (POLLRDHUP | POLLHUP)))
    on_sender_done(connection);
}

void Quarantine::on_sender_done(Connection& connection) noexcept {
  if (!connection.chunk) return;
  connection.sender_done = true;
  x_connections.unwatch(connection);
  if (connection.state != ConnectionState::leaving) return;
  x_connections.drop(connection);
  x_connections.config.rings->release(connection.place());
}

bool Quarantine::at_limit(const util::SocketAddress& name) const noexcept {
  const util::SocketAddress address = x_connections.canonical(name);
  size_t count = 0;
  for (const auto& process : x_connections.processes())
    if (x_connections.canonical(process->name) == address) count += process->connections;
  return count >= kMaxOfOneName;
}

}  // namespace erdma::transport::shm
