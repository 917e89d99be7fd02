#include "transport/verbs/connector.h"

#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "transport/verbs/async_events.h"
#include "transport/verbs/connection_manager.h"
#include "transport/verbs/queue_pairs.h"
#include "transport/verbs/rdma_cm_backend.h"
#include "transport/verbs/tcp_backend.h"
#include "util/fd.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;

uint64_t random_word() noexcept {
  uint64_t word = 0;
  if (getrandom(&word, sizeof(word), GRND_NONBLOCK) != sizeof(word))
    word = uint64_t(getpid()) << 32 ^ util::SystemClock().now();
  return word;
}

/// The thread, asleep in epoll: orders from the polling thread, what happens on the network, what
/// the device says, and time.
class ConnectorThread final : public Connector, AsyncListener {
 public:
  explicit ConnectorThread(const ConnectorConfig& config);
  ~ConnectorThread() override;
  int start_thread();

  const util::SocketAddress& name() const noexcept override { return x_config.name; }
  uint64_t nonce() const noexcept override { return x_nonce; }
  int connect(const util::SocketAddress& peer, uint64_t attempt, bool patient) noexcept override;
  void close(uint64_t connection_id, bool orderly) noexcept override;
  void stop_listening() noexcept override;
  void abandon() noexcept override;

 private:
  struct Command {
    enum class Type : uint8_t {
      connect,
      close,
      stop_listening,
      queue_pair_failed,
      completion_queue_failed,
      device_failed,
    } type;
    bool flag = false;  ///< patient, orderly
    uint64_t id = 0;    ///< attempt, connection
    util::SocketAddress peer = {};
    const ibv_cq* queue = nullptr;
    const char* what = nullptr;
  };

  void on_queue_pair_event(uint64_t id, const char* what) noexcept override;
  void on_completion_queue_event(const ibv_cq* queue) noexcept override;
  void on_device_fatal() noexcept override;

  std::unique_ptr<ConnectionBackend> make_backend();
  int command(const Command& command) noexcept;
  /// For what must not be lost.
  void insist(const Command& command) noexcept;
  static void* entry(void* self) noexcept;
  void run() noexcept;
  void round(int ready, const epoll_event* events) noexcept;
  void run_commands() noexcept;
  void obey(const Command& command);
  void refuse(const Command& command) noexcept;
  int timeout() const noexcept;
  bool watch(int fd, uint32_t what) noexcept;

  ConnectorConfig x_config;
  const uint64_t x_nonce;
  DeviceQueuePairs x_queue_pairs;
  util::Fd x_epoll, x_command_fd;
  std::unique_ptr<ConnectionBackend> x_backend;
  ConnectionManager x_manager;
  std::optional<AsyncEvents> x_async;
  pthread_t x_thread{};
  bool x_running = false;

  std::mutex x_mutex;
  std::vector<Command> x_commands;
  std::atomic<bool> x_stop = false;
};

enum Source : uint32_t { kCommands, kBackend, kAsync };

ConnectorThread::ConnectorThread(const ConnectorConfig& config)
    : x_config(config),
      x_nonce(random_word()),
      x_queue_pairs(*config.device, config.options.peer_timeout_ns),
      x_epoll(epoll_create1(EPOLL_CLOEXEC)),
      x_command_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      x_backend(make_backend()),
      x_manager(x_config, x_nonce, *x_backend) {}

std::unique_ptr<ConnectionBackend> ConnectorThread::make_backend() {
  if (x_config.device->personality() == Personality::iwarp)
    return std::make_unique<RdmaCmBackend>(*x_config.device, x_config.name, x_queue_pairs);
  return std::make_unique<TcpBackend>(x_config.name, x_config.options.peer_timeout_ns,
                                      x_queue_pairs, *x_config.clock);
}

int ConnectorThread::start_thread() {
  if (!x_epoll || !x_command_fd) {
    ERDMA_WARN(EP_CTRL, "cannot make descriptors: %s\n", fi_strerror(errno));
    return -FI_EMFILE;
  }
  if (const int rc = x_backend->listen(x_config.name)) return rc;
  x_async.emplace(*x_config.device, static_cast<AsyncListener&>(*this));
  if (!watch(x_command_fd.get(), kCommands) || !watch(x_backend->fd(), kBackend)) return -FI_ENOMEM;
  // Without asynchronous events everything works; only the reason of a failure comes later.
  if (!watch(x_async->fd(), kAsync))
    ERDMA_INFO(EP_CTRL, "no asynchronous events: %s\n", fi_strerror(errno));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int rc = pthread_create(&x_thread, nullptr, &entry, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  x_running = !rc;
  if (rc) ERDMA_WARN(EP_CTRL, "cannot start a thread: %s\n", fi_strerror(rc));
  return -rc;
}

ConnectorThread::~ConnectorThread() {
  if (x_running) {
    x_stop = true;
    (void)eventfd_write(x_command_fd.get(), 1);
    pthread_join(x_thread, nullptr);
  }
  x_async.reset();  // other threads add orders until then
  x_manager.finish();
}

void ConnectorThread::abandon() noexcept {
  x_backend->abandon();
  x_epoll.reset();
  x_command_fd.reset();
}

bool ConnectorThread::watch(int fd, uint32_t what) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = what;
  return !epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, fd, &event);
}

int ConnectorThread::command(const Command& command) noexcept try {
  bool first = false;
  {
    const std::lock_guard guard(x_mutex);
    first = x_commands.empty();
    x_commands.push_back(command);
  }
  if (first) (void)eventfd_write(x_command_fd.get(), 1);
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

void ConnectorThread::insist(const Command& order) noexcept {
  while (command(order)) usleep(1000);
}

int ConnectorThread::connect(const util::SocketAddress& peer, uint64_t attempt,
                             bool patient) noexcept {
  return command({Command::Type::connect, patient, attempt, peer});
}

void ConnectorThread::close(uint64_t connection_id, bool orderly) noexcept {
  insist({Command::Type::close, orderly, connection_id});
}

void ConnectorThread::stop_listening() noexcept {
  insist({Command::Type::stop_listening});
}

void ConnectorThread::on_queue_pair_event(uint64_t id, const char* what) noexcept {
  insist({Command::Type::queue_pair_failed, false, id, {}, nullptr, what});
}

void ConnectorThread::on_completion_queue_event(const ibv_cq* queue) noexcept {
  insist({Command::Type::completion_queue_failed, false, 0, {}, queue});
}

void ConnectorThread::on_device_fatal() noexcept {
  insist({Command::Type::device_failed});
}

void* ConnectorThread::entry(void* self) noexcept {
  pthread_setname_np(pthread_self(), "erdma-connect");
  static_cast<ConnectorThread*>(self)->run();
  return nullptr;
}

void ConnectorThread::run() noexcept {
  epoll_event events[4];
  while (!x_stop)
    round(epoll_wait(x_epoll.get(), events, int(std::size(events)), timeout()), events);
  round(0, events);  // the last orders: closes that the peers should see as such
}

/// What runs out of memory is left as it is: its time limit ends it.
template <typename Step>
bool guarded(Step&& step) noexcept try {
  step();
  return true;
} catch (const std::bad_alloc&) {
  ERDMA_WARN(EP_CTRL, "out of memory while connecting\n");
  return false;
}

void ConnectorThread::round(int ready, const epoll_event* events) noexcept {
  run_commands();
  for (int i = 0; i < ready; ++i) {
    if (events[i].data.u32 == kBackend) guarded([&] { x_backend->dispatch(x_manager); });
    if (events[i].data.u32 == kAsync) x_async->dispatch();
  }
  guarded([&] { x_backend->expire(x_manager); });
  guarded([&] { x_manager.expire(); });
}

void ConnectorThread::run_commands() noexcept {
  eventfd_t ignored;
  (void)eventfd_read(x_command_fd.get(), &ignored);
  std::vector<Command> commands;
  {
    const std::lock_guard guard(x_mutex);
    commands.swap(x_commands);
  }
  for (const Command& command : commands) {
    const bool done = guarded([&] { obey(command); });
    if (!done && command.type == Command::Type::connect) refuse(command);
  }
}

void ConnectorThread::refuse(const Command& command) noexcept {
  Mail mail;
  mail.type = Mail::Type::failed;
  mail.peer = command.peer;
  mail.attempt = command.id;
  mail.status = -FI_ENOMEM;
  x_config.mail->post(std::move(mail));
}

void ConnectorThread::obey(const Command& command) {
  switch (command.type) {
    case Command::Type::connect:
      return x_manager.connect(command.peer, command.id, command.flag);
    case Command::Type::close:
      return x_manager.close(command.id, command.flag);
    case Command::Type::stop_listening:
      return x_manager.stop_listening();
    case Command::Type::queue_pair_failed:
      return x_manager.on_queue_pair_error(command.id, command.what);
    case Command::Type::completion_queue_failed:
      return x_manager.on_completion_queue_error(command.queue);
    case Command::Type::device_failed:
      return x_manager.on_device_gone();
  }
}

int ConnectorThread::timeout() const noexcept {
  const uint64_t next = std::min(x_manager.next_deadline(), x_backend->next_deadline());
  if (next == UINT64_MAX) return -1;
  const uint64_t now = x_config.clock->now();
  return next <= now ? 0 : int(std::min<uint64_t>((next - now) / kMillisecond + 1, 60'000));
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
