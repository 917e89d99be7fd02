#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/shm/bootstrap.h"
#include "util/log.h"

/// Bootstrap's established connections: control messages and the end of a peer.
namespace erdma::transport::shm {
namespace {

/// A process closes its sockets a moment before its pidfd tells of its exit.
constexpr uint64_t kExitGrace = 100'000'000;

/// Honest peers wait for an answer to the few things that they ask.
constexpr uint32_t kMaxUnread = 64;

/// Each with another word.
constexpr uint8_t kMaxProofs = 3;

/// What a peer may report of itself in a bye.
int bye_status(int value) noexcept {
  return value == -FI_ECONNRESET ? value : -FI_ESHUTDOWN;
}

}  // namespace

void Bootstrap::on_control(const ConnectionPtr& connection) {
  while (connection->state == ConnectionState::up) {
    Control control{};
    Received received = receive(connection->socket.get(), &control, sizeof(control));
    if (received.bytes == -EAGAIN) return;
    if (received.bytes <= 0) return on_hang_up(connection);
    const bool whole = received.bytes == sizeof(control);
    const bool file_lost =
        received.fds_lost && whole && control.type == ControlType::file && !connection->outbound;
    if (file_lost) report_lost_file(*connection);
    if (received.fds_lost && !file_lost) {
      ERDMA_NOTICE(
          descriptors, EP_CTRL,
          "cannot take what %s shares: too many open files; raise RLIMIT_NOFILE (ulimit -n); "
          "closed\n",
          connection->process->name.to_string().c_str());
      return lose(connection, -FI_EMFILE);
    }
    if (!whole || (received.truncated && !file_lost) ||
        !handle(connection, control, std::move(received.fds[0]))) {
      ERDMA_WARN(EP_CTRL, "%s sent an invalid control message: closed\n",
                 connection->process->name.to_string().c_str());
      return lose(connection, -FI_ECONNRESET);
    }
  }
}

/// It may come again: what it names is copied meanwhile.
void Bootstrap::report_lost_file(const Connection& connection) noexcept {
  if (std::exchange(x_lost_file_logged, true)) return;
  ERDMA_NOTICE(descriptors, EP_CTRL,
               "cannot take GPU memory that %s shares: too many open files; raise RLIMIT_NOFILE "
               "(ulimit -n); its messages are copied through host memory\n",
               connection.process->name.to_string().c_str());
}

bool Bootstrap::handle(const ConnectionPtr& connection, const Control& control, util::Fd fd) {
  Mail mail{Mail::Type::promote, connection};
  switch (control.type) {
    case ControlType::promote:
      if (connection->outbound) return false;
      break;
    case ControlType::demote:
      if (!connection->outbound) return false;
      mail.type = Mail::Type::demote;
      break;
    case ControlType::hot_ring:
    case ControlType::bulk_memory: {
      const bool hot = control.type == ControlType::hot_ring;
      if (!connection->outbound) return false;
      auto segment = Segment::adopt(std::move(fd), hot ? kHotSegmentBytes : kBulkBytes);
      if (!segment) return false;
      segment->close_fd();
      mail.type = hot ? Mail::Type::hot_ring : Mail::Type::bulk;
      mail.segment = std::move(*segment);
      break;
    }
    case ControlType::file:
      if (connection->outbound) return false;
      mail.type = Mail::Type::file;
      mail.number = uint32_t(control.value);
      mail.file = std::move(fd);
      break;
    case ControlType::admit:
      on_admit(connection);
      return true;
    case ControlType::admit_answer:
      on_admit_answer(connection, control.value);
      return true;
    case ControlType::prove: {
      const Control answer{ControlType::proof, int32_t(marked(uint32_t(control.value)))};
      (void)send_message(connection->socket.get(), &answer, sizeof(answer));
      return true;
    }
    case ControlType::proof:
      on_proof(connection, uint32_t(control.value));
      return true;
    case ControlType::bye:
      lose(connection, bye_status(control.value));
      return true;
    default:
      return false;
  }
  if (connection->unread.fetch_add(1) >= kMaxUnread) return false;
  x_config.mailbox->post(std::move(mail));
  return true;
}

/// Not everybody who connects may trace this process: only who the application addressed, under a
/// name that the kernel says is its own. What the user opened to everybody, or to nobody, is so.
bool Bootstrap::may_trace(const PeerProcess& process) const noexcept {
  if (x_config.options.ptracer != PtracerPolicy::ancestor) return true;
  return process.proven && x_addressed.contains(canonical(process.name));
}

/// Who has to wait for its answer copies meanwhile, as where it is refused, and says nothing of it.
void Bootstrap::on_admit(const ConnectionPtr& connection) {
  PeerProcess& process = *connection->process;
  if (may_trace(process)) return answer_admission(*connection);
  process.admission_owed = true;
  if (std::exchange(x_owed_logged, true)) return;
  ERDMA_INFO(EP_CTRL,
             "process %d (%s) asks to trace this one, for CMA under ptrace_scope 1: it may once "
             "the application addresses it, as will be true of others; it copies until then. "
             "FI_ERDMA_PTRACER=any admits every process of the user\n",
             int(process.cma.pid), process.name.to_string().c_str());
}

void Bootstrap::on_trust(const util::SocketAddress& peer) {
  x_addressed.insert(peer);
  for (const auto& [id, process] : x_processes) {
    if (!process->admission_owed || !may_trace(*process)) continue;
    for (Connection* connection : process->connections)
      if (process->admission_owed && connection->state == ConnectionState::up)
        answer_admission(*connection);
  }
}

void Bootstrap::answer_admission(Connection& connection) {
  PeerProcess& process = *connection.process;
  process.admission_owed = false;
  const pid_t requester = process.cma.pid;
  const Control answer{
      ControlType::admit_answer,
      requester > 0 ? admit(*x_config.calls, x_config.options.ptracer, requester) : -FI_EPERM};
  (void)send_message(connection.socket.get(), &answer, sizeof(answer));
}

void Bootstrap::on_admit_answer(const ConnectionPtr& connection, int status) {
  PeerProcess& process = *connection->process;
  if (!process.admission_asked || process.admission_answered) return;
  process.admission_answered = true;
  if (!status) probe(*x_config.calls, x_config.options.cma, process.cma);
  ask_proof(connection);
  post_verdict(connection);
}

void Bootstrap::post_verdict(const ConnectionPtr& connection) {
  Mail mail{Mail::Type::verdict, connection};
  settle(mail);
  x_config.mailbox->post(std::move(mail));
}

/// Writing may be permitted where reading is not. Who listens or connects is known from the kernel,
/// and by the pidfd that its pid was not given to another process; that it also is the process that
/// talks to us, and no child that holds its socket, it says by what it finds in its memory.
void Bootstrap::ask_proof(const ConnectionPtr& connection) {
  PeerProcess& process = *connection->process;
  if (process.proof_pending || process.proofs_asked >= kMaxProofs) return;
  if (!x_config.options.cma || process.cma.pid <= 0 || !wants_proof(process.cma)) return;
  if (process.life->pidfd() < 0 || process.life->over()) return;
  // Another word each time: a second peer may have chosen the same one.
  const auto seed = uint32_t(x_nonce >> (8 * process.proofs_asked++));
  const uint32_t word = 1 + seed % (kScratchWords - 1);
  process.mark = seed | 1;
  if (mark(*x_config.calls, process.cma, word, process.mark)) return;
  const Control ask{ControlType::prove, int32_t(word)};
  process.proof_pending = !send_message(connection->socket.get(), &ask, sizeof(ask));
}

void Bootstrap::on_proof(const ConnectionPtr& connection, uint32_t found) {
  PeerProcess& process = *connection->process;
  if (!process.proof_pending) return;
  process.proof_pending = false;
  if (found != process.mark) return ask_proof(connection);
  allow_write(process.cma);
  for (const Connection* each : process.connections)
    if (const auto at = x_connections.find(each->id); at != x_connections.end())
      post_verdict(at->second);
}

void Bootstrap::on_hang_up(const ConnectionPtr& connection) {
  // Perhaps it executes another program now: nothing of that is to be touched.
  if (!connection->closed.load()) connection->process->life->suspend();
  if (connection->process->life->pidfd() < 0) return lose(connection, -FI_ECONNRESET);
  unwatch(connection->socket.get());
  connection->state = ConnectionState::hung_up;
  connection->deadline = x_config.clock->now() + kExitGrace;
}

void Bootstrap::on_exit(uint64_t process_id) {
  const auto found = x_processes.find(process_id);
  if (found == x_processes.end()) return;
  const std::shared_ptr<PeerProcess> process = found->second;
  unwatch(process->life->pidfd());
  process->life->suspend();
  const std::vector<Connection*> connections = process->connections;
  for (Connection* connection : connections) {
    const auto at = x_connections.find(connection->id);
    if (at == x_connections.end()) continue;
    const ConnectionPtr alive = at->second;
    // A goodbye that it sent before it exited is still to be read.
    if (alive->state == ConnectionState::up) on_control(alive);
    if (alive->state == ConnectionState::up || alive->state == ConnectionState::hung_up)
      lose(alive, -FI_ECONNRESET);
    on_sender_done(alive);
  }
}

// The peer hears of it even while nobody polls here. But the socket of an outbound channel is shut
// down by the polling thread only (close()), which may be writing into the peer's memory just now.
void Bootstrap::lose(const ConnectionPtr& connection, int status) {
  Mail mail{Mail::Type::lost, connection};
  mail.status = status;
  Connection& lost = *mail.connection;  // `connection` may be what drop() destroys
  const Control bye{ControlType::bye, status};
  (void)send_message(lost.socket.get(), &bye, sizeof(bye));
  if (lost.place.chunk) {
    ::shutdown(lost.socket.get(), SHUT_WR);
    lost.state = ConnectionState::lost;
    lost.deadline = 0;
    await_sender(lost);
  } else {
    drop(mail.connection);
    lost.state = ConnectionState::hung_up;
  }
  x_config.mailbox->post(std::move(mail));
}

}  // namespace erdma::transport::shm
