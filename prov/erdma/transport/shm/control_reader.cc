#include "transport/shm/control_reader.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include <rdma/fi_errno.h>

#include "util/lacks.h"
#include "util/log.h"

namespace erdma::transport::shm {
namespace {

/// A process closes its sockets shortly before its pidfd reports its exit, and an endpoint says
/// that it closes on all its connections at about the same time.
constexpr uint64_t kExitGrace = 100'000'000;

/// How long this process may lack a descriptor for the memory of large messages, or the room to map
/// it.
constexpr uint64_t kPatience = 5'000 * util::kMillisecond;

/// Honest peers wait for the answer to each of their few requests.
constexpr uint32_t kMaxUnread = 64;

/// The status that a peer may report in its bye: an orderly close, or a failure of any kind.
int bye_status(int value) noexcept {
  return value == -FI_ESHUTDOWN ? value : -FI_ECONNRESET;
}

}  // namespace

void ControlReader::read(Connection& connection, unsigned most) {
  for (; most > 0 && connection.state == ConnectionState::up; --most) {
    if (connection.unmapped || must_wait(connection)) return;
    Control control{};
    Received received = receive(connection.socket.get(), &control, sizeof(control));
    if (received.bytes == -EAGAIN) return;
    if (received.bytes <= 0) return on_hang_up(connection);
    const bool whole = received.bytes == sizeof(control);
    const bool file_lost =
        received.fds_lost && whole && control.type == ControlType::file && !connection.outbound;
    if (file_lost) report_lost_file(connection);
    const bool ring_lost =
        received.fds_lost && whole && control.type == ControlType::hot_ring && connection.outbound;
    if (ring_lost) {
      report_lost_ring(connection);
      continue;
    }
    if (received.fds_lost && !file_lost) {
      ERDMA_NOTICE(
          descriptors, EP_CTRL,
          "cannot take what %s shares: too many open files; raise RLIMIT_NOFILE (ulimit -n); "
          "closed",
          connection.process->name.to_string().c_str());
      return lose(connection, -FI_EMFILE);
    }
    if (!whole || (received.truncated && !file_lost) ||
        !handle(connection, control, std::move(received.fds[0]))) {
      ERDMA_WARN(EP_CTRL, "%s sent an invalid control message: closed\n",
                 connection.process->name.to_string().c_str());
      return lose(connection, -FI_ECONNRESET);
    }
  }
}

/// A message whose descriptor finds no place is lost, and without the memory of large messages the
/// link is, too. So that message stays in the socket while there is no place.
bool ControlReader::must_wait(Connection& connection) noexcept {
  Control next{};
  const int socket = connection.socket.get();
  const bool there = ::recv(socket, &next, sizeof(next), MSG_PEEK | MSG_DONTWAIT) == sizeof(next);
  if (!there || next.type != ControlType::bulk_memory) return false;
  const bool room = bool(util::Fd(::fcntl(socket, F_DUPFD_CLOEXEC, 0)));
  const uint64_t now = x_connections.config.clock->now();
  if (room || !connection.lacks_since) connection.lacks_since = room ? 0 : now;
  if (room || now - connection.lacks_since >= kPatience) return false;
  wait(connection);
  return true;
}

/// Reads nothing more until resume().
void ControlReader::wait(Connection& connection) noexcept {
  const uint64_t now = x_connections.config.clock->now();
  if (!connection.lacks_since) connection.lacks_since = now;
  x_connections.unwatch(connection);
  connection.deadline = now + util::kMillisecond;
}

void ControlReader::resume(Connection& connection) {
  if (connection.unmapped) {
    if (!map_bulk_memory(connection)) return lose(connection, -FI_ECONNRESET);
    if (connection.unmapped || connection.state != ConnectionState::up) return;
  }
  if (x_connections.watch(connection))
    connection.deadline = x_connections.config.clock->now() + util::kMillisecond;
  else
    on_readable(connection);
}

/// The peer may pass the file again; what it names is copied meanwhile.
void ControlReader::report_lost_file(const Connection& connection) noexcept {
  if (std::exchange(x_lost_file_logged, true)) return;
  ERDMA_NOTICE(descriptors, EP_CTRL,
               "cannot take GPU memory that %s shares: too many open files; raise RLIMIT_NOFILE "
               "(ulimit -n); its messages are copied through host memory",
               connection.process->name.to_string().c_str());
}

/// The cold ring stays in use.
void ControlReader::report_lost_ring(const Connection& connection) noexcept {
  ERDMA_NOTICE(descriptors, EP_CTRL,
               "cannot take the ring that %s grants for many messages: too many open files; raise "
               "RLIMIT_NOFILE (ulimit -n); its small ring stays in use",
               connection.process->name.to_string().c_str());
  (void)send_control(connection.socket, ControlType::no_hot_ring);
}

bool ControlReader::handle(Connection& connection, const Control& control, util::Fd fd) {
  switch (control.type) {
    case ControlType::admit:
      x_negotiation.on_admit(connection);
      return true;
    case ControlType::admit_answer:
      x_negotiation.on_admit_answer(connection, control.value);
      return true;
    case ControlType::prove:
      x_negotiation.on_prove(connection, uint32_t(control.value));
      return true;
    case ControlType::proof:
      x_negotiation.on_proof(connection, uint32_t(control.value));
      return true;
    case ControlType::closing:
      connection.process->closing = true;
      lose(connection, -FI_ESHUTDOWN);
      return true;
    case ControlType::bye:
      lose(connection, bye_status(control.value));
      return true;
    default:
      return handle_mail(connection, control, std::move(fd));
  }
}

/// Passes a message to the polling thread. False = no honest peer sends it here.
bool ControlReader::handle_mail(Connection& connection, const Control& control, util::Fd fd) {
  const bool by_sender = control.type == ControlType::promote ||
                         control.type == ControlType::file ||
                         control.type == ControlType::no_hot_ring;
  if (by_sender == connection.outbound) return false;
  Mail mail{Mail::Type::promote, util::Ref<Connection>(connection)};
  if (control.type == ControlType::demote) {
    mail.type = Mail::Type::demote;
  } else if (control.type == ControlType::no_hot_ring) {
    mail.type = Mail::Type::no_hot_ring;
  } else if (control.type == ControlType::file) {
    mail.type = Mail::Type::file;
    mail.number = uint32_t(control.value);
    mail.file = std::move(fd);
  } else if (control.type == ControlType::bulk_memory) {
    connection.unmapped = std::move(fd);
    return map_bulk_memory(connection);
  } else if (control.type == ControlType::hot_ring) {
    auto segment = Memfd::adopt(std::move(fd), kHotSegmentBytes);
    if (segment.error() == -FI_EINVAL) return false;
    // Without memory for a hot ring the cold one stays in use.
    if (!segment) return (void)send_control(connection.socket, ControlType::no_hot_ring), true;
    segment->close_fd_unless_needed();
    mail.type = Mail::Type::hot_ring;
    mail.segment = std::move(*segment);
  } else if (control.type != ControlType::promote) {
    return false;
  }
  return post(std::move(mail));
}

/// False = no honest peer has so many unread.
bool ControlReader::post(Mail mail) {
  if (mail.connection->unread.fetch_add(1) >= kMaxUnread) return false;
  x_connections.config.mailbox->post(std::move(mail));
  return true;
}

/// Without this memory the channel can move no large message, so it waits for room to map it. False
/// = no honest peer sends such memory.
bool ControlReader::map_bulk_memory(Connection& connection) {
  auto segment = Memfd::adopt(std::move(connection.unmapped), kBulkBytes);
  if (segment.error() == -FI_EINVAL) return connection.unmapped.reset(), false;
  if (!segment) {
    const uint64_t since = connection.lacks_since;
    const uint64_t now = x_connections.config.clock->now();
    if (util::is_lack(segment.error()) && (!since || now - since < kPatience)) {
      wait(connection);
    } else {
      connection.unmapped.reset();
      lose(connection, segment.error());
    }
    return true;
  }
  connection.lacks_since = 0;
  segment->close_fd();
  Mail mail{Mail::Type::bulk, util::Ref<Connection>(connection)};
  mail.segment = std::move(*segment);
  return post(std::move(mail));
}

void ControlReader::read_controls(uint64_t nonce) {
  const util::Ref<PeerProcess> process = x_connections.process_of(nonce);
  if (!process) return;
  x_connections.each_of(*process, [this](Connection& connection) { read(connection, kAll); });
}

void ControlReader::on_hang_up(Connection& connection) {
  // The process may have executed another program, whose memory must not be touched.
  if (!connection.closed.load()) connection.process->life().suspend();
  if (connection.process->life().pidfd() < 0) return lose(connection, -FI_ECONNRESET);
  x_connections.unwatch(connection);
  connection.state = ConnectionState::hung_up;
  connection.deadline = x_connections.config.clock->now() + kExitGrace;
}

/// An endpoint that closes in order has said so here or on another connection. A bye there tells of
/// that channel only. A process that gives back much memory while it is killed may take longer, and
/// one that executes another program does not exit.
void ControlReader::on_grace_over(Connection& connection) {
  lose(connection, connection.process->closing ? -FI_ESHUTDOWN : -FI_ECONNRESET);
}

void ControlReader::on_unsent(Connection& connection) {
  read(connection, kAll);
  if (connection.state == ConnectionState::up) lose(connection, -FI_ECONNRESET);
}

void ControlReader::on_exit(uint64_t process_id) {
  const util::Ref<PeerProcess> process = x_connections.process(process_id);
  if (!process) return;
  x_connections.unwatch_exit(*process);
  process->life().suspend();
  x_connections.each_of(*process, [this](Connection& connection) {
    // The peer may have sent a bye before it exited.
    connection.unmapped.reset();
    read(connection, kAll);
    const ConnectionState state = connection.state;
    if (!x_connections.find(connection.id)) return;
    if (state == ConnectionState::up || state == ConnectionState::hung_up)
      lose(connection, -FI_ECONNRESET);
    x_quarantine.on_sender_done(connection);
  });
}

// The bye reaches the peer even while this process does not poll. The socket of an outbound
// channel, however, is shut down only by the polling thread (Connector::close), which may be
// writing into the peer's memory at this moment.
void ControlReader::lose(Connection& connection, int status) {
  Mail mail{Mail::Type::lost, util::Ref<Connection>(connection)};
  mail.status = status;
  (void)send_control(connection.socket, ControlType::bye, status);
  if (connection.chunk) {
    ::shutdown(connection.socket.get(), SHUT_WR);
    x_quarantine.begin(connection);
  } else {
    x_connections.drop(connection);
    connection.state = ConnectionState::hung_up;
  }
  x_connections.config.mailbox->post(std::move(mail));
  x_negotiation.on_over(connection);
}

}  // namespace erdma::transport::shm
