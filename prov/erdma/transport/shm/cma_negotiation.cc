#include "transport/shm/cma_negotiation.h"

#include <utility>

#include <rdma/fi_errno.h>

#include "util/log.h"

namespace erdma::transport::shm {
namespace {

/// Each proof uses another scratch word.
constexpr uint8_t kMaxProofs = 3;

}  // namespace

void CmaNegotiation::describe(Mail& mail) noexcept {
  const PeerProcess& process = *mail.connection->process;
  mail.cma = process.cma;
  mail.cma_final = process.admission_answered || !wants_admission(process.cma);
}

void CmaNegotiation::begin(Connection& connection) noexcept {
  PeerProcess& process = *connection.process;
  if (process.admission_over) return;
  if (process.admission_answered || !wants_admission(process.cma)) return ask_proof(connection);
  if (!send_control(connection.socket, ControlType::admit)) process.admission_over = connection.id;
}

void CmaNegotiation::on_over(const Connection& connection) noexcept {
  PeerProcess* const process = connection.process.get();
  if (!process) return;
  const bool admission = process->admission_over == connection.id;
  const bool proof = process->proof_over == connection.id;
  if (!admission && !proof) return;
  if (admission) process->admission_over = 0;
  if (proof) process->proof_over = 0, --process->proofs_asked;
  x_connections.each_of(*process, [&](Connection& other) {
    if (&other != &connection && other.state == ConnectionState::up && !other.welcome_due &&
        !other.closed.load())
      begin(other);
  });
}

/// Under the default policy a process that connects may not trace this one unless the application
/// addressed it, under a name that the kernel confirms. The other policies admit every process or
/// none, as the user chose.
bool CmaNegotiation::may_trace(const PeerProcess& process) const noexcept {
  if (x_connections.config.options.ptracer != PtracerPolicy::ancestor) return true;
  return process.proven && x_addressed.contains(x_connections.canonical(process.name));
}

/// A peer that waits for this answer copies meanwhile, as after a refusal, without a line in its
/// log.
void CmaNegotiation::on_admit(Connection& connection) {
  const PeerProcess& process = *connection.process;
  if (may_trace(process)) return answer_admission(connection);
  connection.admission_due = true;
  if (std::exchange(x_due_logged, true)) return;
  ERDMA_INFO(
      EP_CTRL,
      "process %d (%s) asks to trace this one, for CMA under ptrace_scope 1: it may do so as soon "
      "as the application addresses it, and so may other peers; it copies until then. "
      "FI_ERDMA_PTRACER=any admits every process of the user\n",
      int(process.cma.pid), process.name.to_string().c_str());
}

void CmaNegotiation::on_trust(const util::SocketAddress& peer) {
  if (!x_connections.asks_for_admission()) return;
  x_addressed.insert(peer);
  for (const auto& connection : x_connections.all())
    if (connection->admission_due && connection->state == ConnectionState::up &&
        may_trace(*connection->process))
      answer_admission(*connection);
}

/// The answer takes the connection of the question, so that it is lost only with that connection.
void CmaNegotiation::answer_admission(Connection& connection) noexcept {
  connection.admission_due = false;
  const pid_t requester = connection.process->cma.pid;
  const ConnectorConfig& config = x_connections.config;
  (void)send_control(
      connection.socket, ControlType::admit_answer,
      requester > 0 ? admit(*config.calls, config.options.ptracer, requester) : -FI_EPERM);
}

void CmaNegotiation::on_admit_answer(Connection& connection, int status) {
  PeerProcess& process = *connection.process;
  if (!process.admission_over || connection.state != ConnectionState::up) return;
  process.admission_over = 0;
  process.admission_answered = true;
  const ConnectorConfig& config = x_connections.config;
  if (!status) probe(*config.calls, config.options.cma, process.cma);
  ask_proof(connection);
  post_verdicts(process);
}

/// To all connections, as the polling thread may have closed some of them.
void CmaNegotiation::post_verdicts(const PeerProcess& process) {
  x_connections.each_of(process, [&](Connection& connection) {
    Mail mail{Mail::Type::verdict, util::Ref<Connection>(connection)};
    describe(mail);
    x_connections.config.mailbox->post(std::move(mail));
  });
}

/// Writing may be permitted where reading is not. The kernel names the process that listens or
/// connects, and the pidfd shows that its pid was not given to another process. What the peer finds
/// in its memory proves that it is this process, not a child that holds its socket.
void CmaNegotiation::ask_proof(Connection& connection) noexcept {
  PeerProcess& process = *connection.process;
  const ConnectorConfig& config = x_connections.config;
  if (process.proof_over || process.proofs_asked >= kMaxProofs) return;
  if (!config.options.cma || process.cma.pid <= 0 || !wants_proof(process.cma)) return;
  if (process.life().pidfd() < 0 || process.life().over()) return;
  // Use another word each time, because a second peer may have chosen the same one.
  const auto seed = uint32_t(x_connections.nonce >> (8 * process.proofs_asked++));
  const uint32_t word = 1 + seed % (kScratchWords - 1);
  process.mark = seed | 1;
  if (mark(*config.calls, process.cma, word, process.mark)) return;
  if (!send_control(connection.socket, ControlType::prove, int32_t(word)))
    process.proof_over = connection.id;
}

void CmaNegotiation::on_prove(Connection& connection, uint32_t word) noexcept {
  (void)send_control(connection.socket, ControlType::proof, int32_t(marked(word)));
}

void CmaNegotiation::on_proof(Connection& connection, uint32_t found) {
  PeerProcess& process = *connection.process;
  if (process.proof_over != connection.id) return;
  process.proof_over = 0;
  if (found != process.mark) return ask_proof(connection);
  allow_write(process.cma);
  post_verdicts(process);
}

}  // namespace erdma::transport::shm
