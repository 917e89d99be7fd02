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

void CmaNegotiation::begin(Connection& connection) {
  PeerProcess& process = *connection.process;
  if (process.admission_asked) return;
  if (!wants_admission(process.cma)) return ask_proof(connection);
  process.admission_asked = true;
  (void)send_control(connection.socket, ControlType::admit);
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
  PeerProcess& process = *connection.process;
  if (may_trace(process)) return answer_admission(connection);
  process.admission_due = true;
  if (std::exchange(x_due_logged, true)) return;
  ERDMA_INFO(
      EP_CTRL,
      "process %d (%s) asks to trace this one, for CMA under ptrace_scope 1: it may do so as soon "
      "as the application addresses it, and so may other peers; it copies until then. "
      "FI_ERDMA_PTRACER=any admits every process of the user\n",
      int(process.cma.pid), process.name.to_string().c_str());
}

void CmaNegotiation::on_trust(const util::SocketAddress& peer) {
  x_addressed.insert(peer);
  for (const auto& [id, process] : x_connections.processes()) {
    if (!process->admission_due || !may_trace(*process)) continue;
    for (Connection* connection : process->connections)
      if (process->admission_due && connection->state == ConnectionState::up)
        answer_admission(*connection);
  }
}

void CmaNegotiation::answer_admission(Connection& connection) noexcept {
  PeerProcess& process = *connection.process;
  process.admission_due = false;
  const pid_t requester = process.cma.pid;
  const ConnectorConfig& config = x_connections.config;
  (void)send_control(
      connection.socket, ControlType::admit_answer,
      requester > 0 ? admit(*config.calls, config.options.ptracer, requester) : -FI_EPERM);
}

void CmaNegotiation::on_admit_answer(Connection& connection, int status) {
  PeerProcess& process = *connection.process;
  if (!process.admission_asked || process.admission_answered) return;
  process.admission_answered = true;
  const ConnectorConfig& config = x_connections.config;
  if (!status) probe(*config.calls, config.options.cma, process.cma);
  ask_proof(connection);
  post_verdict(connection);
}

void CmaNegotiation::post_verdict(Connection& connection) {
  Mail mail{Mail::Type::verdict, connection.shared_from_this()};
  describe(mail);
  x_connections.config.mailbox->post(std::move(mail));
}

/// Writing may be permitted where reading is not. The kernel names the process that listens or
/// connects, and the pidfd shows that its pid was not given to another process. What the peer finds
/// in its memory proves that it is this process, not a child that holds its socket.
void CmaNegotiation::ask_proof(Connection& connection) noexcept {
  PeerProcess& process = *connection.process;
  const ConnectorConfig& config = x_connections.config;
  if (process.proof_pending || process.proofs_asked >= kMaxProofs) return;
  if (!config.options.cma || process.cma.pid <= 0 || !wants_proof(process.cma)) return;
  if (process.life->pidfd() < 0 || process.life->over()) return;
  // Use another word each time, because a second peer may have chosen the same one.
  const auto seed = uint32_t(x_connections.nonce >> (8 * process.proofs_asked++));
  const uint32_t word = 1 + seed % (kScratchWords - 1);
  process.mark = seed | 1;
  if (mark(*config.calls, process.cma, word, process.mark)) return;
  process.proof_pending = !send_control(connection.socket, ControlType::prove, int32_t(word));
}

void CmaNegotiation::on_prove(Connection& connection, uint32_t word) noexcept {
  (void)send_control(connection.socket, ControlType::proof, int32_t(marked(word)));
}

void CmaNegotiation::on_proof(Connection& connection, uint32_t found) {
  PeerProcess& process = *connection.process;
  if (!process.proof_pending) return;
  process.proof_pending = false;
  if (found != process.mark) return ask_proof(connection);
  allow_write(process.cma);
  for (Connection* each : process.connections) post_verdict(*each);
}

}  // namespace erdma::transport::shm
