#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <rdma/fi_errno.h>

#include "transport/shm/bootstrap.h"
#include "transport/version.h"
#include "util/error_text.h"
#include "util/log.h"

/// Bootstrap's two handshakes. Everything received is checked; a stranger costs one log line.
namespace erdma::transport::shm {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kHandshakeTimeout = 5'000 * kMillisecond;
constexpr uint64_t kMaxBackoff = 50 * kMillisecond;

util::SocketAddress name_of(const Greeting& greeting) noexcept {
  return util::SocketAddress::from_sockaddr(
      greeting.name, std::min(size_t(greeting.name_bytes), sizeof(greeting.name)));
}

/// Empty = acceptable. `whole`: it has the size that it has in this version.
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

/// It has a connection that is not over.
bool speaks(const PeerProcess& process) noexcept {
  return std::any_of(process.connections.begin(), process.connections.end(),
                     [](const Connection* connection) {
                       return connection->state != ConnectionState::lost &&
                              connection->state != ConnectionState::leaving;
                     });
}

const char* remedy(int status) noexcept {
  return status == -FI_EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "";
}

}  // namespace

Greeting Bootstrap::greeting() const noexcept {
  Greeting greeting;
  greeting.protocol_version = x_config.options.protocol_version;
  greeting.name_bytes = uint32_t(x_config.name.size());
  std::memcpy(greeting.name, x_config.name.data(), x_config.name.size());
  greeting.expedited = x_config.expedited;
  greeting.nonce = x_nonce;
  greeting.boot = x_boot;
  greeting.doorbell = x_config.doorbell;
  greeting.identity = x_identity;
  return greeting;
}

// One outbound channel per peer. Mail of one that connect_back() made answers whatever attempt is
// under way; that of another names the attempt, which may be over by now.
void Bootstrap::begin_connect(const ConnectRequest& request, util::Fd socket) {
  if (const ConnectionPtr begun = outbound_to(request.address)) {
    const bool up = begun->state == ConnectionState::up;
    if (!up) begun->request = request;
    if (!up || !begun->request.link) return;
  }
  auto connection = std::make_shared<Connection>();
  connection->outbound = true;
  connection->state = ConnectionState::connecting;
  connection->request = request;
  connection->started = x_config.clock->now();
  connection->socket = std::move(socket);
  try_connect(add(std::move(connection)));
}

// Whoever sends here is owed answers, and may wait for one while nobody polls here.
void Bootstrap::connect_back(const util::SocketAddress& peer, util::Fd socket) {
  const util::SocketAddress address = canonical(peer);
  if (x_listener && !outbound_to(address) && !x_closing)
    begin_connect({nullptr, 0, address, false}, std::move(socket));
}

Bootstrap::ConnectionPtr Bootstrap::outbound_to(const util::SocketAddress& address) const noexcept {
  for (const auto& [id, connection] : x_connections)
    if (connection->outbound && connection->state != ConnectionState::hung_up &&
        connection->request.address == address)
      return connection;
  return nullptr;
}

util::SocketAddress Bootstrap::canonical(const util::SocketAddress& address) const noexcept {
  if (x_config.options.scope != NameScope::host) return address;
  util::SocketAddress result = x_config.name;
  result.set_port(address.port());
  return result;
}

void Bootstrap::try_connect(const ConnectionPtr& connection) {
  auto socket = connection->socket ? util::Result<util::Fd>(std::move(connection->socket))
                                   : connect_as_peer(connection->request.address);
  if (!socket) {
    const int status = socket.error();
    const bool soon = status == -FI_EAGAIN;  // its queue is full: it exists
    if (soon || status == -FI_ECONNREFUSED)
      return retry_or_fail(connection, -FI_ECONNREFUSED, soon || connection->request.patient);
    ERDMA_WARN(EP_CTRL, "cannot connect to %s: %s%s\n",
               connection->request.address.to_string().c_str(), util::ErrorText(-status).c_str(),
               remedy(status));
    return fail(connection, status);
  }
  const Credentials peer = peer_credentials(socket->get());
  if (peer.uid != geteuid()) {
    ERDMA_WARN(EP_CTRL, "%s belongs to another user (%u)\n",
               connection->request.address.to_string().c_str(), peer.uid);
    return fail(connection, -FI_EACCES);
  }
  connection->socket = std::move(*socket);
  const Hello hello{greeting()};
  if (send_message(connection->socket.get(), &hello, sizeof(hello)))
    return retry_or_fail(connection, -FI_ECONNREFUSED, true);
  connection->state = ConnectionState::awaiting_welcome;
  connection->deadline = x_config.clock->now() + kHandshakeTimeout;
  watch(connection->socket.get(), event_of(kSocket, connection->id));
}

void Bootstrap::retry_or_fail(const ConnectionPtr& connection, int status, bool patient) {
  const uint64_t now = x_config.clock->now();
  if (connection->socket) unwatch(connection->socket.get());
  connection->socket.reset();
  if (!patient || now - connection->started >= x_config.options.connect_timeout_ns) {
    ERDMA_INFO(EP_CTRL, "nobody listens as %s\n", connection->request.address.to_string().c_str());
    return fail(connection, status);
  }
  connection->backoff = std::clamp(connection->backoff * 2, kMillisecond, kMaxBackoff);
  connection->state = ConnectionState::connecting;
  connection->deadline = now + connection->backoff;
}

void Bootstrap::fail(const ConnectionPtr& connection, int status) {
  Mail mail{Mail::Type::out_failed};
  mail.request = connection->request;
  mail.status = status;
  drop(connection);
  x_config.mailbox->post(std::move(mail));
}

void Bootstrap::refuse(const ConnectionPtr& connection, const char* why) {
  unsigned suppressed = 0;
  if (x_strangers.allow(x_config.clock->now(), suppressed))
    ERDMA_WARN(EP_CTRL, "refused a connection of process %d: %s; %u more before\n",
               int(peer_credentials(connection->socket.get()).pid), why, suppressed);
  turn_away(connection);
}

void Bootstrap::turn_away(const ConnectionPtr& connection) {
  Welcome answer;
  answer.greeting = greeting();
  answer.status = -FI_ECONNREFUSED;
  (void)send_message(connection->socket.get(), &answer, sizeof(answer));
  drop(connection);
}

void Bootstrap::on_hello(const ConnectionPtr& connection) {
  const Greeting ours = greeting();
  Hello hello{ours};  // what a short one leaves out is right
  Received received = receive(connection->socket.get(), &hello, sizeof(hello));
  if (received.bytes == -EAGAIN) return;
  if (received.bytes <= 0) {
    ERDMA_INFO(EP_CTRL, "a connection closed without a word\n");
    return drop(connection);
  }
  const bool whole = !received.truncated && received.bytes == sizeof(hello);
  const std::string fault = fault_of(hello.greeting, whole, ours);
  if (!fault.empty()) return refuse(connection, fault.c_str());
  accept_hello(connection, hello.greeting);
}

void Bootstrap::accept_hello(const ConnectionPtr& connection, const Greeting& theirs) {
  const char* why = nullptr;
  util::Fd back;
  if (crowded(name_of(theirs)))
    return refuse(connection, "it has ended many connections and closed none of them");
  const int owned = check_name(connection, name_of(theirs), theirs.nonce, back);
  if (owned == -FI_ECONNREFUSED) {
    ERDMA_INFO(EP_CTRL, "%s greeted, and is gone\n", name_of(theirs).to_string().c_str());
    return turn_away(connection);
  }
  if (owned) return refuse(connection, "the name it gives belongs to another process");
  if (meet(connection, theirs, &why)) return refuse(connection, why);
  auto place = x_config.rings->acquire();
  if (!place) return refuse(connection, "no memory for its ring");
  connection->place = *place;
  --x_pending_hellos;
  go_up(connection);
  // The polling thread must know the ring before anything can arrive in it.
  Mail mail{Mail::Type::in_up, connection};
  settle(mail);
  x_config.mailbox->post(std::move(mail));
  Welcome welcome;
  welcome.greeting = greeting();
  welcome.ring = place->index;
  if (send_message(connection->socket.get(), &welcome, sizeof(welcome), &place->fd, 1))
    return lose(connection, -FI_ECONNRESET);
  ask_admission(connection);
  connect_back(connection->process->name, std::move(back));
}

void Bootstrap::on_welcome(const ConnectionPtr& connection) {
  const Greeting ours = greeting();
  Welcome welcome{ours};
  Received received = receive(connection->socket.get(), &welcome, sizeof(welcome));
  if (received.bytes == -EAGAIN) return;
  if (received.bytes <= 0) return retry_or_fail(connection, -FI_ECONNREFUSED, true);
  const std::string peer = connection->request.address.to_string();
  const std::string fault = fault_of(welcome.greeting, received.bytes == sizeof(welcome), ours);
  if (!fault.empty() || welcome.status) {
    ERDMA_NOTICE(peer_lost, EP_CTRL, "no connection with %s: %s\n", peer.c_str(),
                 fault.empty() ? "it refused" : fault.c_str());
    return fail(connection, -FI_ECONNREFUSED);
  }
  if (received.truncated) {
    ERDMA_NOTICE(descriptors, EP_CTRL, "cannot take what %s shares%s\n", peer.c_str(),
                 remedy(-FI_EMFILE));
    return fail(connection, -FI_EMFILE);
  }
  accept_welcome(connection, welcome, received);
}

void Bootstrap::accept_welcome(const ConnectionPtr& connection, const Welcome& welcome,
                               Received& received) {
  const char* why = nullptr;
  const int status = meet(connection, welcome.greeting, &why);
  auto chunk = Segment::adopt(std::move(received.fds[0]), kColdChunkBytes);
  if (status || !chunk || welcome.ring >= kColdRings) {
    ERDMA_WARN(EP_CTRL, "no connection with %s: %s\n",
               connection->request.address.to_string().c_str(),
               why ? why : "its shared memory is not as promised");
    return fail(connection, status == -FI_EMFILE ? status : -FI_ECONNREFUSED);
  }
  chunk->close_fd();
  go_up(connection);
  ask_admission(connection);
  Mail mail{Mail::Type::out_up, connection, connection->request};
  mail.segment = std::move(*chunk);
  mail.ring = welcome.ring;
  settle(mail);
  x_config.mailbox->post(std::move(mail));
}

/// 0 if the process at the other end of `connection` may use this name: the kernel lets one socket
/// listen under it. -FI_ECONNREFUSED: nobody does; -FI_EACCES: another process does. `back` is the
/// connection by which that was found out.
int Bootstrap::check_name(const ConnectionPtr& connection, const util::SocketAddress& name,
                          uint64_t nonce, util::Fd& back) {
  const util::SocketAddress address = canonical(name);
  bool taken = false;
  for (const auto& [id, process] : x_processes) {
    if (!(canonical(process->name) == address) || !speaks(*process)) continue;
    if (process->nonce == nonce && process->proven) return 0;  // meet() compares the pid
    taken = taken || process->nonce != nonce;
  }
  const ConnectionPtr begun = outbound_to(address);
  const bool asked = begun && begun->state == ConnectionState::awaiting_welcome;
  if (!asked) {
    auto socket = connect_as_peer(address);
    // A full queue proves nothing: good enough for a name that nobody here uses.
    if (!socket && socket.error() != -FI_ECONNREFUSED) return taken ? -FI_EACCES : 0;
    if (!socket) return -FI_ECONNREFUSED;
    back = std::move(*socket);
  }
  const int listener = asked ? begun->socket.get() : back.get();
  const pid_t greets = peer_credentials(connection->socket.get()).pid;
  connection->name_proven = peer_credentials(listener).pid == greets;
  return connection->name_proven ? 0 : -FI_EACCES;
}

/// 0, or why not, also in words.
int Bootstrap::meet(const ConnectionPtr& connection, const Greeting& theirs, const char** why) {
  const int socket = connection->socket.get();
  const pid_t pid = x_config.calls->pid_of(socket, name_of(theirs));
  std::shared_ptr<PeerProcess> process = find_process(theirs.nonce);
  if (process && (process->cma.pid != pid || !(process->name == name_of(theirs)))) {
    *why = "it claims to be another process";
    return -FI_EACCES;
  }
  if (process) hear_out(*process);
  if (process && !process->connections.empty()) {
    process->life->resume();
  } else {
    auto known = know_process(socket, pid, theirs, why);
    if (!known) return known.error();
    process = std::move(*known);
  }
  // Who answers where one asked for a name listens there.
  process->proven =
      process->proven || connection->name_proven ||
      (connection->outbound && canonical(process->name) == connection->request.address);
  process->connections.push_back(connection.get());
  connection->process = std::move(process);
  return 0;
}

/// Or why it can't be had, also in words.
util::Result<std::shared_ptr<PeerProcess>> Bootstrap::know_process(int socket, pid_t pid,
                                                                   const Greeting& theirs,
                                                                   const char** why) {
  auto ringer = Ringer::to(theirs.doorbell);
  if (!ringer) {
    *why = ringer.error() == -FI_EMFILE
               ? "too many open files here; raise RLIMIT_NOFILE (ulimit -n)"
               : "it cannot be woken";
    return ringer.error();
  }
  auto pidfd = x_config.calls->pidfd_of(socket, pid);
  if (!pidfd) {
    *why = "its process is gone";
    return pidfd.error();
  }
  auto process = std::make_shared<PeerProcess>();
  process->name = name_of(theirs);
  process->nonce = theirs.nonce;
  process->id = x_next_id++;
  process->expedited = theirs.expedited;
  process->ringer = std::move(*ringer);
  process->life = std::make_shared<PeerLife>(std::move(*pidfd), *x_config.clock);
  process->cma.life = process->life;
  process->cma.pid = pid;
  process->cma.identity = theirs.identity;
  probe(*x_config.calls, x_config.options.cma, process->cma);
  x_processes.emplace(process->id, process);
  if (const int fd = process->life->pidfd(); fd >= 0) watch(fd, event_of(kProcess, process->id));
  return process;
}

std::shared_ptr<PeerProcess> Bootstrap::find_process(uint64_t nonce) const noexcept {
  for (const auto& [id, process] : x_processes)
    if (process->nonce == nonce) return process;
  return nullptr;
}

// What a peer said on its other channel came before its new greeting: it may have closed that one.
void Bootstrap::hear_out(PeerProcess& process) {
  const std::vector<Connection*> connections = process.connections;
  for (const Connection* connection : connections) {
    const auto found = x_connections.find(connection->id);
    if (found == x_connections.end() || found->second->state != ConnectionState::up) continue;
    const ConnectionPtr alive = found->second;
    on_control(alive);
  }
}

void Bootstrap::settle(Mail& mail) noexcept {
  const PeerProcess& process = *mail.connection->process;
  mail.cma = process.cma;
  mail.settled = process.admission_answered || !wants_admission(process.cma);
}

void Bootstrap::go_up(const ConnectionPtr& connection) {
  connection->state = ConnectionState::up;
  connection->deadline = 0;
}

/// Where Yama wants the peer to name us its tracer. Never before our Welcome, which is the first
/// thing that a peer expects.
void Bootstrap::ask_admission(const ConnectionPtr& connection) {
  PeerProcess& process = *connection->process;
  if (process.admission_asked) return;
  if (!wants_admission(process.cma)) return ask_proof(connection);
  process.admission_asked = true;
  const Control ask{ControlType::admit, 0};
  (void)send_message(connection->socket.get(), &ask, sizeof(ask));
}

}  // namespace erdma::transport::shm
