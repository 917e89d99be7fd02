#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/shm/bootstrap.h"
#include "util/error_text.h"
#include "util/log.h"

/// Bootstrap's inbound channels that are over. The sender of one may not know it yet and write into
/// its ring and its control words; so the place stays its own until it has shut its socket down,
/// which its polling thread does after its last write, or is dead, as its pidfd says. Nothing is
/// read from the socket meanwhile. docs/architecture.md, "Reuse".
namespace erdma::transport::shm {
namespace {

/// Connections of one name, most of them in quarantine: an honest peer closes each as soon as it
/// polls, so that it never has more than a few.
constexpr size_t kMaxOfOneName = 64;

}  // namespace

/// The polling thread touches its ring no more.
void Bootstrap::end_channel(const ConnectionPtr& connection) {
  if (!connection->place.chunk || !x_connections.contains(connection->id)) return drop(connection);
  connection->deadline = 0;
  const bool watched = connection->state == ConnectionState::lost;
  connection->state = ConnectionState::leaving;
  if (connection->sender_done)
    on_sender_done(connection);
  else if (!watched)
    await_sender(*connection);
}

void Bootstrap::await_sender(Connection& connection) {
  epoll_event wanted{};
  wanted.events = EPOLLRDHUP;  // or the end of both directions, which needs not be asked for
  wanted.data.u64 = event_of(kSocket, connection.id);
  const int fd = connection.socket.get();
  if (epoll_ctl(x_epoll.get(), EPOLL_CTL_MOD, fd, &wanted) &&
      (errno != ENOENT || epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, fd, &wanted)))
    ERDMA_WARN(EP_CTRL, "epoll_ctl: %s\n", util::ErrorText(errno).c_str());
}

/// The event may be one from before: only the socket itself tells.
void Bootstrap::on_sender_event(const ConnectionPtr& connection) {
  pollfd socket{connection->socket.get(), POLLRDHUP, 0};
  if (::poll(&socket, 1, 0) == 1 && (socket.revents & (POLLRDHUP | POLLHUP)))
    on_sender_done(connection);
}

void Bootstrap::on_sender_done(const ConnectionPtr& connection) {
  if (!connection->place.chunk) return;
  connection->sender_done = true;
  unwatch(connection->socket.get());
  if (connection->state != ConnectionState::leaving) return;
  const ConnectionPtr kept = connection;  // `connection` may be what drop() destroys
  drop(kept);
  x_config.rings->release(kept->place);
}

bool Bootstrap::crowded(const util::SocketAddress& name) const noexcept {
  const util::SocketAddress address = canonical(name);
  size_t count = 0;
  for (const auto& [id, process] : x_processes)
    if (canonical(process->name) == address) count += process->connections.size();
  return count >= kMaxOfOneName;
}

}  // namespace erdma::transport::shm
