#include "transport/verbs/connector.h"

#include <poll.h>
#include <sodium.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "transport/endpoint_thread.h"
#include "transport/mailbox.h"
#include "transport/verbs/async_events.h"
#include "transport/verbs/connection_manager.h"
#include "transport/verbs/queue_pairs.h"
#include "transport/verbs/rdma_cm_backend.h"
#include "transport/verbs/tcp_backend.h"
#include "util/event_fd.h"
#include "util/log.h"
#include "util/random_word.h"

namespace erdma::transport::verbs {
namespace {

/// The work of an endpoint's connector thread: commands from the polling thread, network events,
/// device events, and deadlines.
class ConnectorThread final : public Connector, AsyncListener, EndpointThread::Work {
 public:
  explicit ConnectorThread(const ConnectorConfig& config);
  ~ConnectorThread() override;
  int start_thread();

  const util::SocketAddress& name() const noexcept override { return x_config.name; }
  int connect(const util::SocketAddress& peer, uint64_t attempt,
              bool retry_refused) noexcept override;
  void close(uint64_t connection_id, bool orderly) noexcept override;
  void stop_listening() noexcept override;
  void end_by(uint64_t time) noexcept override { x_end_by = time; }
  void abandon() noexcept override;
  bool step() noexcept override { return x_thread.step(); }

 private:
  struct Command {
    enum class Type : uint8_t { connect, close, stop_listening, device_event } type;
    bool flag = false;  ///< retry_refused, orderly
    uint64_t id = 0;    ///< attempt, connection
    util::SocketAddress peer = {};
    DeviceEvent event = {};
  };

  void on_device_event(const DeviceEvent& event) noexcept override;

  void on_commands() override;
  void on_event(uint64_t event) override;
  void on_time() override;
  uint64_t next_deadline() const noexcept override {
    return std::min({x_manager.next_deadline(), x_backend->next_deadline(), x_next_reminder});
  }
  void remind() noexcept;

  std::unique_ptr<ConnectionBackend> make_backend();
  void execute(const Command& command);
  void await_held();

  ConnectorConfig x_config;
  const uint64_t x_nonce = util::random_word();
  uint64_t x_end_by = 0;                  ///< 0: not told
  uint64_t x_next_reminder = UINT64_MAX;  ///< from the first connection on
  DeviceQueuePairs x_queue_pairs;
  std::unique_ptr<ConnectionBackend> x_backend;
  ConnectionManager x_manager;
  std::optional<AsyncEvents> x_async;
  EndpointThread x_thread;
  Mailbox<Command, util::EventFd> x_commands;
};

enum Source : uint64_t { kBackend, kAsync, kQuestion };

ConnectorThread::ConnectorThread(const ConnectorConfig& config)
    : x_config(config),
      x_queue_pairs(*config.device, config.options.peer_timeout_ns),
      x_backend(make_backend()),
      x_manager(x_config, x_nonce, *x_backend),
      x_thread(*this, *config.clock),
      x_commands(x_thread.bell()) {}

std::unique_ptr<ConnectionBackend> ConnectorThread::make_backend() {
  if (x_config.device->transport_type() == TransportType::iwarp)
    return std::make_unique<RdmaCmBackend>(*x_config.device, x_config.name, x_queue_pairs);
  return std::make_unique<TcpBackend>(x_config.name, x_config.options.peer_timeout_ns,
                                      x_queue_pairs, *x_config.clock);
}

int ConnectorThread::start_thread() {
  if (const int rc = x_thread.open()) return rc;
  if (const int rc = x_backend->listen(x_config.name)) return rc;
  x_async.emplace(*x_config.device, static_cast<AsyncListener&>(*this));
  if (const int rc = x_thread.watch(x_backend->fd(), kBackend)) return rc;
  // Without asynchronous events everything works; only the reason of a failure arrives later.
  (void)x_thread.watch(x_async->fd(), kAsync);
  if (x_config.options.questions >= 0)
    (void)x_thread.watch(x_config.options.questions, kQuestion, EPOLLIN | EPOLLET);
  if (!x_commands.arm()) x_thread.bell().ring();  // other threads may already report events
  return x_config.options.background ? x_thread.start("erdma-connect") : 0;
}

ConnectorThread::~ConnectorThread() {
  x_thread.stop();
  x_async.reset();  // other threads post commands until here
  on_commands();    // the last commands: closes that peers should see as orderly
  await_held();
}

/// Waits for peers whose attempts were given up; most answer within a round trip.
void ConnectorThread::await_held() {
  const util::SystemClock clock;
  const uint64_t end = x_end_by ? x_end_by : clock.now() + kEndTime;
  while (x_manager.finish()) {
    const uint64_t now = clock.now();
    if (now >= end) return;
    pollfd events{x_backend->fd(), POLLIN, 0};
    if (::poll(&events, 1, int((end - now) / 1'000'000) + 1) < 0 && errno != EINTR) return;
    guarded("closing", [this] { x_backend->dispatch(x_manager); });
  }
}

void ConnectorThread::abandon() noexcept {
  x_backend->abandon();
  x_thread.abandon();
}

int ConnectorThread::connect(const util::SocketAddress& peer, uint64_t attempt,
                             bool retry_refused) noexcept {
  return x_commands.try_post({Command::Type::connect, retry_refused, attempt, peer});
}

void ConnectorThread::close(uint64_t connection_id, bool orderly) noexcept {
  x_commands.post({Command::Type::close, orderly, connection_id});
}

void ConnectorThread::stop_listening() noexcept {
  x_commands.post({Command::Type::stop_listening});
}

/// Does not wait for memory, because other listeners wait for this one. Without the event the time
/// limits of the connections end them.
void ConnectorThread::on_device_event(const DeviceEvent& event) noexcept {
  if (x_commands.try_post({Command::Type::device_event, false, 0, {}, event}))
    say_out_of_memory("noting an error of the device");
}

void ConnectorThread::on_commands() {
  x_commands.arm();
  for (const Command& command : x_commands.take()) {
    const bool done = guarded("connecting", [&] { execute(command); });
    if (!done && command.type == Command::Type::connect)
      x_config.mail->post({.type = Mail::Type::failed,
                           .peer = command.peer,
                           .attempt = command.id,
                           .status = -FI_ENOMEM});
  }
}

void ConnectorThread::on_event(uint64_t event) {
  if (event == kBackend) x_backend->dispatch(x_manager);
  // The driver was removed.
  if (event == kAsync && !x_async->dispatch()) x_thread.unwatch(x_async->fd());
  if (event == kQuestion) x_config.mail->ask();
}

void ConnectorThread::on_time() {
  guarded("connecting", [&] { x_backend->expire(x_manager); });
  x_manager.expire();
  remind();
}

/// The polling thread looks at its clock only once in many polls. One that polls rarely would
/// notice a silent peer, and ask it for a sign of life, far too late.
void ConnectorThread::remind() noexcept {
  const uint64_t now = x_config.clock->now();
  if (x_next_reminder == UINT64_MAX ? !x_config.factory->connections() : now < x_next_reminder)
    return;
  if (x_next_reminder != UINT64_MAX) x_config.mail->remind();
  x_next_reminder = now + x_config.options.tick_ns();
}

void ConnectorThread::execute(const Command& command) {
  switch (command.type) {
    case Command::Type::connect:
      return x_manager.connect(command.peer, command.id, command.flag);
    case Command::Type::close:
      return x_manager.close(command.id, command.flag);
    case Command::Type::stop_listening:
      return x_manager.stop_listening();
    case Command::Type::device_event:
      return x_manager.on_device_event(command.event);
  }
}

}  // namespace

util::Result<std::unique_ptr<Connector>> Connector::start(const ConnectorConfig& config) {
  if (sodium_init() < 0) {
    ERDMA_WARN(EP_CTRL, "libsodium can't be used on this system\n");
    return -FI_ENOSYS;
  }
  auto connector = std::make_unique<ConnectorThread>(config);
  if (const int rc = connector->start_thread()) return rc;
  return std::unique_ptr<Connector>(std::move(connector));
}

}  // namespace erdma::transport::verbs
