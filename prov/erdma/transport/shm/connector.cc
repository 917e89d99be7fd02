#include "transport/shm/connector.h"

#include <sys/socket.h>

#include <algorithm>

#include <rdma/fi_errno.h>

namespace erdma::transport::shm {
namespace {

/// The endpoint closes. The polling thread has not closed connections whose mail it has not read,
/// and those that are not up here may be up at the peer.
void say_closing(const Connection& connection) noexcept {
  const bool may_be_up = connection.state == ConnectionState::up ||
                         connection.state == ConnectionState::awaiting_welcome;
  if (may_be_up && !connection.closed.load())
    (void)send_control(connection.socket, ControlType::closing);
}

}  // namespace

Connector::Connector(const ConnectorConfig& config)
    : x_connections(config, x_thread),
      x_listener(x_connections, x_thread),
      x_thread(*this, *config.clock) {}

util::Result<std::unique_ptr<Connector>> Connector::start(const ConnectorConfig& config) {
  std::unique_ptr<Connector> connector(new Connector(config));
  if (const int rc = connector->x_thread.open()) return rc;
  if (const int rc = connector->x_listener.bind(connector->x_connections.config.name)) return rc;
  connector->x_commands.arm();
  // The endpoint also works if this fails.
  if (const int questions = config.options.questions; questions >= 0)
    (void)connector->x_thread.watch(questions, event_of(kQuestion, 0), EPOLLIN | EPOLLET);
  if (config.options.background)
    if (const int rc = connector->x_thread.start("erdma-connect")) return rc;
  return connector;
}

Connector::~Connector() {
  x_thread.stop();
  if (!x_abandoned)
    for (const auto& connection : x_connections.all()) say_closing(*connection);
  x_listener.close();
}

void Connector::abandon() noexcept {
  x_abandoned = true;
  x_listener.abandon();
  x_thread.abandon();
}

int Connector::connect(const ConnectRequest& request) noexcept {
  return x_commands.try_post({Command::Type::connect, request});
}

int Connector::trust(const util::SocketAddress& peer) noexcept {
  return x_commands.try_post({Command::Type::trust, {nullptr, 0, peer, false}});
}

void Connector::close(const util::Ref<Connection>& connection, int status) noexcept {
  connection->closed.store(true);
  // The goodbye is best effort: the shutdown conveys the end too, even where a forked child still
  // holds the socket. The shutdown of an outbound channel also tells that this process no longer
  // writes into the peer's memory. For an inbound channel this side waits until the peer tells the
  // same.
  const ControlType goodbye = x_connections.closing ? ControlType::closing : ControlType::bye;
  if (connection->process) (void)send_control(connection->socket, goodbye, status);
  ::shutdown(connection->socket.get(), connection->outbound ? SHUT_RDWR : SHUT_WR);
  if (x_commands.try_post({Command::Type::close, {}, connection})) x_commands.ask();
}

void Connector::stop_listening() noexcept {
  x_connections.closing = true;
  if (x_commands.try_post({Command::Type::stop_listening})) x_commands.ask();
}

void Connector::on_commands() {
  x_commands.arm();
  if (x_commands.take_question()) execute_flags();
  for (Command& command : x_commands.take()) {
    if (guarded("connecting", [&] { execute(command); })) continue;
    if (command.type == Command::Type::connect)
      x_handshake.fail(command.request, -FI_ENOMEM);
    else
      x_commands.post(std::move(command));  // try again, since no other part learns of the failure
  }
}

/// A command to close found no memory. Flags of what is to be closed say the same.
void Connector::execute_flags() noexcept {
  if (x_connections.closing) x_listener.close();
  while (const auto connection = x_connections.closed_here()) on_closed(*connection);
}

void Connector::on_closed(Connection& connection) noexcept {
  x_quarantine.on_closed(connection);
  x_negotiation.on_over(connection);
}

void Connector::execute(const Command& command) {
  switch (command.type) {
    case Command::Type::close:
      return on_closed(*command.connection);
    case Command::Type::trust:
      return x_negotiation.on_trust(command.request.address);
    case Command::Type::stop_listening:
      return x_listener.close();
    case Command::Type::connect:
      return x_handshake.begin(command.request);
  }
}

void Connector::on_event(uint64_t event) {
  const uint64_t id = event >> 2;
  if ((event & 3) == kListener) return x_listener.accept();
  if ((event & 3) == kQuestion) return x_connections.config.mailbox->ask();
  if ((event & 3) == kProcess) return x_control.on_exit(id);
  const util::Ref<Connection> connection = x_connections.find(id);
  if (connection && !guarded("connecting", [&] { on_readable(*connection); }))
    x_handshake.give_up(*connection);
}

void Connector::on_readable(Connection& connection) {
  switch (connection.state) {
    case ConnectionState::awaiting_hello:
      return x_handshake.on_hello(connection);
    case ConnectionState::awaiting_welcome:
      return x_handshake.on_welcome(connection);
    case ConnectionState::up:
      return x_control.on_readable(connection);
    case ConnectionState::lost:
    case ConnectionState::leaving:
      return x_quarantine.on_event(connection);
    case ConnectionState::connecting:
    case ConnectionState::hung_up:
      return;
  }
}

void Connector::on_time() {
  const uint64_t now = x_connections.config.clock->now();
  x_listener.resume(now);
  for (const auto& connection : x_connections.due(now)) {
    connection->deadline = 0;
    if (connection->state == ConnectionState::hung_up)
      x_control.on_grace_over(*connection);
    else if (connection->state > ConnectionState::hung_up)
      x_quarantine.watch(*connection);
    else if (connection->state != ConnectionState::up || connection->welcome_due)
      x_handshake.on_deadline(*connection);
    else if (!guarded("connecting", [&] { x_control.resume(*connection); }))
      x_handshake.give_up(*connection);
  }
}

uint64_t Connector::next_deadline() const noexcept {
  return std::min(x_listener.deadline(), x_connections.next_deadline());
}

}  // namespace erdma::transport::shm
