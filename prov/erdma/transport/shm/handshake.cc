#include "transport/shm/handshake.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <rdma/fi_errno.h>

#include "util/error_text.h"
#include "util/lacks.h"
#include "util/log.h"

namespace erdma::transport::shm {
namespace {

constexpr uint64_t kHandshakeTimeout = 5'000 * util::kMillisecond;
/// How long a connect is retried where the peer listens but drops the connection, or where this
/// process lacks memory for it.
constexpr uint64_t kRetries = 5'000 * util::kMillisecond;
/// How long this process may lack room to map the ring that it was given, or a descriptor.
constexpr uint64_t kMapPatience = 5'000 * util::kMillisecond;
constexpr uint64_t kMaxBackoff = 50 * util::kMillisecond;

/// True if the process has a connection that is not over.
bool speaks(const Connections& all, const PeerProcess& process) noexcept {
  bool found = false;
  all.each_of(process, [&](const Connection& connection) {
    found = found || (connection.state != ConnectionState::lost &&
                      connection.state != ConnectionState::leaving);
  });
  return found;
}

/// True if a goodbye came in place of the welcome.
bool is_bye(const Welcome& welcome, ssize_t bytes) noexcept {
  Control control;
  std::memcpy(&control, &welcome, sizeof(control));
  return bytes == sizeof(control) &&
         (control.type == ControlType::bye || control.type == ControlType::closing);
}

}  // namespace

// There is one outbound channel per peer. The mail about a channel that connect_back() made answers
// whichever attempt is under way. Other mail names its attempt, which may already be over.
void Handshake::begin(const ConnectRequest& request, util::Fd socket) {
  if (const auto begun = x_connections.outbound_to(request.address)) {
    const bool up = begun->state == ConnectionState::up;
    if (!up) {
      begun->attempt->request = request;
      begun->requested = request.link != nullptr;
    }
    // A channel that is up and was not requested is in the mail, unless the polling thread has
    // closed it.
    if (!up || (!begun->requested && !begun->closed.load())) return;
  }
  auto connection = util::make_ref<Connection>();
  connection->outbound = true;
  connection->state = ConnectionState::connecting;
  connection->attempt->request = request;
  connection->attempt->started = now();
  connection->requested = request.link != nullptr;
  connection->socket = std::move(socket);
  try_connect(x_connections.add(connection));
}

// A peer that sends here needs a channel for answers, perhaps while this process does not poll.
void Handshake::connect_back(const util::SocketAddress& peer, util::Fd socket) {
  const util::SocketAddress address = x_connections.canonical(peer);
  if (!x_connections.closing && !x_connections.outbound_to(address))
    begin({nullptr, 0, address, false}, std::move(socket));
}

void Handshake::give_up(Connection& connection) {
  if (connection.state == ConnectionState::awaiting_hello) return x_connections.drop(connection);
  if (connection.attempt && connection.attempt->chunk) {
    connection.deadline = now() + util::kMillisecond;
    return;
  }
  if (connection.state < ConnectionState::up)
    return retry_or_fail(connection, -FI_ENOMEM, kRetries);
  if (connection.state == ConnectionState::up) x_control.lose(connection, -FI_ENOMEM);
}

void Handshake::try_connect(Connection& connection) {
  if (!guarded("connecting", [&] { connect_once(connection); })) give_up(connection);
}

void Handshake::connect_once(Connection& connection) {
  const ConnectRequest& request = connection.attempt->request;
  auto socket = connection.socket ? util::Result<util::Fd>(std::move(connection.socket))
                                  : connect_as_peer(request.address);
  if (!socket) {
    const int status = socket.error();
    const bool soon = status == -FI_EAGAIN;  // the listener's queue is full, so it exists
    if (soon || status == -FI_ECONNREFUSED)
      return retry_or_fail(
          connection, -FI_ECONNREFUSED,
          soon || request.retry_refused ? x_connections.config.options.connect_timeout_ns : 0);
    ERDMA_WARN(EP_CTRL, "cannot connect to %s: %s%s\n", request.address.to_string().c_str(),
               util::ErrorText(-status).c_str(), util::remedy_of_lack(-status));
    return retry_or_fail(connection, status, util::is_lack(status) ? kRetries : 0);
  }
  const Credentials peer = peer_credentials(socket->get());
  if (peer.uid != geteuid()) {
    ERDMA_WARN(EP_CTRL, "%s belongs to another user (%u)\n", request.address.to_string().c_str(),
               peer.uid);
    return fail(connection, -FI_EACCES);
  }
  connection.socket = std::move(*socket);
  // The watch comes first, as the peer may consider the connection established after the hello.
  if (x_connections.watch(connection)) return retry_or_fail(connection, -FI_ENOMEM, kRetries);
  const Hello hello{x_connections.greeting()};
  if (send_message(connection.socket.get(), &hello, sizeof(hello)))
    return retry_or_fail(connection, -FI_ECONNREFUSED, kRetries);
  connection.state = ConnectionState::awaiting_welcome;
  connection.deadline = now() + kHandshakeTimeout;
}

void Handshake::retry_or_fail(Connection& connection, int status, uint64_t patience) {
  const uint64_t time = now();
  ConnectionAttempt& attempt = *connection.attempt;
  x_connections.unwatch(connection);
  connection.socket.reset();
  if (time - attempt.started >= patience) {
    if (status == -FI_ECONNREFUSED)
      ERDMA_INFO(EP_CTRL, "no endpoint listens as %s\n",
                 attempt.request.address.to_string().c_str());
    return fail(connection, status);
  }
  attempt.backoff = std::clamp(attempt.backoff * 2, util::kMillisecond, kMaxBackoff);
  connection.state = ConnectionState::connecting;
  connection.deadline = time + attempt.backoff;
}

void Handshake::fail(Connection& connection, int status) {
  const ConnectRequest request = connection.attempt->request;
  x_connections.drop(connection);
  fail(request, status);
}

void Handshake::fail(const ConnectRequest& request, int status) {
  Mail mail{Mail::Type::out_failed};
  mail.request = request;
  mail.status = status;
  x_connections.config.mailbox->post(std::move(mail));
}

void Handshake::refuse(Connection& connection, const char* why) {
  ERDMA_WARN(EP_CTRL, "refused a connection of process %d: %s\n",
             int(peer_credentials(connection.socket.get()).pid), why);
  refuse_silently(connection);
}

/// A peer that gets no answer tries again for a while: what lacks here now may be here then.
void Handshake::turn_away(Connection& connection, int error, const char* why) {
  if (!util::is_lack(error)) return refuse(connection, why);
  ERDMA_WARN(EP_CTRL, "process %d has to connect again: %s\n",
             int(peer_credentials(connection.socket.get()).pid), why);
  x_connections.drop(connection);
}

void Handshake::refuse_silently(Connection& connection) {
  send_refusal(connection);
  x_connections.drop(connection);
}

void Handshake::send_refusal(Connection& connection) noexcept {
  Welcome answer;
  answer.greeting = x_connections.greeting();
  answer.status = -FI_ECONNREFUSED;
  (void)send_message(connection.socket.get(), &answer, sizeof(answer));
}

void Handshake::on_hello(Connection& connection) {
  const Greeting ours = x_connections.greeting();
  Hello hello{ours};  // fields that a short message lacks stay valid
  Received received = receive(connection.socket.get(), &hello, sizeof(hello));
  if (received.bytes == -EAGAIN) return;
  if (received.bytes <= 0) {
    ERDMA_INFO(EP_CTRL, "a connection ended before its first message\n");
    return x_connections.drop(connection);
  }
  const bool whole = !received.truncated && received.bytes == sizeof(hello);
  const std::string fault = fault_of(hello.greeting, whole, ours);
  if (!fault.empty()) return refuse(connection, fault.c_str());
  accept_hello(connection, hello.greeting);
}

void Handshake::accept_hello(Connection& connection, const Greeting& theirs) {
  const char* why = nullptr;
  util::Fd back;
  if (x_quarantine.at_limit(name_of(theirs)))
    return refuse(connection, "it has ended many connections and closed none of them");
  const int owned = check_name(connection, name_of(theirs), theirs.nonce, back);
  if (owned == -FI_ECONNREFUSED) {
    ERDMA_INFO(EP_CTRL, "%s sent its greeting and disconnected\n",
               name_of(theirs).to_string().c_str());
    return refuse_silently(connection);
  }
  if (owned) return refuse(connection, "the name it gives belongs to another process");
  x_control.read_controls(theirs.nonce);
  if (const int rc = x_connections.find_or_add_process(connection, theirs, &why))
    return turn_away(connection, rc, why);
  auto place = x_connections.config.rings->acquire(connection.process->expedited);
  if (!place) return turn_away(connection, place.error(), "no memory for its ring");
  connection.chunk = place->chunk;
  connection.ring = place->index;
  if (x_connections.config.options.background) (void)x_connections.life.show_in(place->chunk->life);
  x_connections.go_up(connection);
  // The polling thread must know the ring before anything can arrive in it.
  post_up({Mail::Type::in_up, util::Ref<Connection>(connection)});
  connection.attempt->started = now();
  if (!send_welcome(connection)) return;
  // If memory runs out here, the polling thread connects once it has something to send.
  guarded("connecting", [&] { connect_back(connection.process->name, std::move(back)); });
}

/// How long the kernel may lack room to pass a ring.
uint64_t Handshake::most_wait_for_room() const noexcept {
  return std::max(kRetries, x_connections.config.options.connect_timeout_ns);
}

/// Passes the peer its ring, now or at the deadline. False: the connection is lost.
bool Handshake::send_welcome(Connection& connection) {
  Welcome welcome;
  welcome.greeting = x_connections.greeting();
  welcome.ring = connection.ring;
  const int fd = x_connections.config.rings->descriptor_of(connection.place());
  const int rc = send_message(connection.socket.get(), &welcome, sizeof(welcome), &fd, 1);
  connection.welcome_due = lacks_room(rc);
  if (connection.welcome_due) {
    const uint64_t time = now();
    connection.deadline = time + util::kMillisecond;
    if (time - connection.attempt->started < most_wait_for_room()) return true;
    send_refusal(connection);
  }
  if (rc) return x_control.on_unsent(connection), false;
  x_connections.forget_attempt(connection);
  x_negotiation.begin(connection);
  return true;
}

void Handshake::on_welcome(Connection& connection) {
  if (connection.attempt->chunk) return accept_welcome(connection);
  const Greeting ours = x_connections.greeting();
  Welcome welcome{ours};
  Received received = receive(connection.socket.get(), &welcome, sizeof(welcome));
  if (received.bytes == -EAGAIN) return;
  // The peer may end the channel before it has passed the ring, for which it takes its time.
  if (is_bye(welcome, received.bytes))
    return retry_or_fail(connection, -FI_ECONNREFUSED, kRetries + most_wait_for_room());
  if (received.bytes <= 0) return retry_or_fail(connection, -FI_ECONNREFUSED, kRetries);
  const util::AddressText peer = connection.attempt->request.address.to_string();
  const std::string fault = fault_of(welcome.greeting, received.bytes == sizeof(welcome), ours);
  if (!fault.empty() || welcome.status) {
    ERDMA_NOTICE(peer_lost, EP_CTRL, "no connection with %s: %s", peer.c_str(),
                 fault.empty() ? "it refused" : fault.c_str());
    return fail(connection, -FI_ECONNREFUSED);
  }
  if (received.truncated) {
    ERDMA_NOTICE(descriptors, EP_CTRL, "cannot take what %s shares%s", peer.c_str(),
                 util::remedy_of_lack(EMFILE));
    return fail(connection, -FI_EMFILE);
  }
  connection.attempt->welcome = welcome;
  connection.attempt->chunk = std::move(received.fds[0]);
  connection.attempt->started = now();
  accept_welcome(connection);
}

/// Steps that may throw or lack memory come first: this function is then called again, because the
/// peer already considers the connection established.
void Handshake::accept_welcome(Connection& connection) {
  ConnectionAttempt& attempt = *connection.attempt;
  const Welcome& welcome = attempt.welcome;
  const char* why = nullptr;
  x_control.read_controls(welcome.greeting.nonce);
  const bool again = bool(connection.process);
  // Its exit was reported while this side waited, and is not reported again.
  if (again && connection.process->life().exited()) return fail(connection, -FI_ECONNREFUSED);
  const int status =
      again ? 0 : x_connections.find_or_add_process(connection, welcome.greeting, &why);
  if (util::is_lack(status)) return await_room(connection, status);
  auto chunk = Memfd::adopt(std::move(attempt.chunk), kColdChunkBytes);
  if (!status && chunk.error() == -FI_ENOMEM) return await_room(connection, -FI_ENOMEM);
  if (status || !chunk || welcome.ring >= kColdRings) {
    ERDMA_WARN(EP_CTRL, "no connection with %s: %s\n", attempt.request.address.to_string().c_str(),
               why ? why : "its shared memory is not what it announced");
    return fail(connection, -FI_ECONNREFUSED);
  }
  chunk->close_fd();
  // await_room() may have ended the watch.
  if (x_connections.watch(connection)) return fail(connection, -FI_ENOMEM);
  x_connections.go_up(connection);
  x_negotiation.begin(connection);
  Mail mail{Mail::Type::out_up, util::Ref<Connection>(connection), attempt.request};
  mail.segment = std::move(*chunk);
  mail.ring = welcome.ring;
  post_up(std::move(mail));
  x_connections.forget_attempt(connection);
}

/// What the peer sends meanwhile stays in the socket.
void Handshake::await_room(Connection& connection, int lack) {
  const uint64_t time = now();
  if (time - connection.attempt->started >= kMapPatience) return fail(connection, lack);
  x_connections.unwatch(connection);
  connection.deadline = time + util::kMillisecond;
}

/// 0 if the process at the other end of `connection` may use this name: the kernel lets only one
/// socket listen under it. -FI_ECONNREFUSED: no socket does; -FI_EACCES: another process's does.
/// `back` is the connection that was made to find out.
int Handshake::check_name(Connection& connection, const util::SocketAddress& name, uint64_t nonce,
                          util::Fd& back) {
  const util::SocketAddress address = x_connections.canonical(name);
  bool taken = false;
  for (const auto& process : x_connections.processes()) {
    if (!(x_connections.canonical(process->name) == address) || !speaks(x_connections, *process))
      continue;
    if (process->nonce == nonce && process->proven)
      return 0;  // find_or_add_process() compares the pid
    taken = taken || process->nonce != nonce;
  }
  const auto begun = x_connections.outbound_to(address);
  const bool asked = begun && begun->state == ConnectionState::awaiting_welcome;
  if (!asked) {
    auto socket = connect_as_peer(address);
    // A full queue proves nothing; that is acceptable for a name that no known peer uses.
    if (!socket && socket.error() != -FI_ECONNREFUSED) return taken ? -FI_EACCES : 0;
    if (!socket) return -FI_ECONNREFUSED;
    back = std::move(*socket);
  }
  const int listener = asked ? begun->socket.get() : back.get();
  const pid_t greets = peer_credentials(connection.socket.get()).pid;
  connection.name_proven = peer_credentials(listener).pid == greets;
  return connection.name_proven ? 0 : -FI_EACCES;
}

void Handshake::post_up(Mail mail) noexcept {
  CmaNegotiation::describe(mail);
  x_connections.config.mailbox->post(std::move(mail));
}

void Handshake::on_deadline(Connection& connection) {
  if (connection.state == ConnectionState::connecting) return try_connect(connection);
  if (connection.welcome_due) return void(send_welcome(connection));
  if (connection.attempt && connection.attempt->chunk) {
    if (!guarded("connecting", [&] { accept_welcome(connection); })) give_up(connection);
    return;
  }
  if (connection.state == ConnectionState::awaiting_hello) {
    ERDMA_INFO(EP_CTRL, "closed a connection that sent nothing for 5 s\n");
    return x_connections.drop(connection);
  }
  // A stopped or very slow peer is not dead; its socket reports when it is.
  ERDMA_INFO(EP_CTRL, "%s does not answer yet; waiting\n",
             connection.attempt->request.address.to_string().c_str());
}

}  // namespace erdma::transport::shm
