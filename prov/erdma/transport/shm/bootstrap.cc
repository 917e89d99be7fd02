#include "transport/shm/bootstrap.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "transport/shm/wake.h"
#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::shm {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr int kEvents = 32;

uint64_t random_word() noexcept {
  uint64_t word = 0;
  if (getrandom(&word, sizeof(word), GRND_NONBLOCK) != sizeof(word))
    word = uint64_t(getpid()) << 32 ^ util::SystemClock().now();
  return word;
}

/// One connection that memory does not suffice for is not the end of the others.
template <typename Body>
void survive(const char* doing, Body&& body) noexcept try {
  body();
} catch (const std::bad_alloc&) {
  ERDMA_WARN(EP_CTRL, "out of memory while %s\n", doing);
}

}  // namespace

Bootstrap::Bootstrap(const BootstrapConfig& config)
    : x_config(config),
      x_nonce(random_word()),
      x_boot(boot_id_hash()),
      x_identity(config.calls->identity()),
      x_epoll(epoll_create1(EPOLL_CLOEXEC)),
      x_command_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

util::Result<std::unique_ptr<Bootstrap>> Bootstrap::start(const BootstrapConfig& config) {
  std::unique_ptr<Bootstrap> bootstrap(new Bootstrap(config));
  if (!bootstrap->x_epoll || !bootstrap->x_command_fd) {
    ERDMA_WARN(EP_CTRL, "cannot make descriptors: %s\n", util::ErrorText(errno).c_str());
    return -FI_EMFILE;
  }
  if (const int rc = bootstrap->bind_name()) return rc;
  bootstrap->watch(bootstrap->x_command_fd.get(), event_of(kCommands, 0));
  bootstrap->watch(bootstrap->x_listener.get(), event_of(kListener, 0));
  if (config.options.background)
    if (const int rc = bootstrap->start_thread()) return rc;
  return bootstrap;
}

int Bootstrap::start_thread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int rc = pthread_create(&x_thread, nullptr, &entry, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  x_running = !rc;
  if (rc) ERDMA_WARN(EP_CTRL, "cannot start a thread: %s\n", util::ErrorText(rc).c_str());
  return -rc;
}

Bootstrap::~Bootstrap() {
  if (!x_running) return;
  x_stop = true;
  write_eventfd(x_command_fd.get());
  pthread_join(x_thread, nullptr);
  close_listener();
}

void Bootstrap::abandon() noexcept {
  x_listener.reset();
  x_epoll.reset();
  x_command_fd.reset();
}

int Bootstrap::command(Command command) noexcept try {
  {
    std::lock_guard guard(x_mutex);
    x_commands.push_back(std::move(command));
  }
  write_eventfd(x_command_fd.get());
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

int Bootstrap::connect(const ConnectRequest& request) noexcept {
  return command({Command::Type::connect, request});
}

int Bootstrap::trust(const util::SocketAddress& peer) noexcept {
  return command({Command::Type::trust, {nullptr, 0, peer, false}});
}

void Bootstrap::close(const ConnectionPtr& connection, int status) noexcept {
  const Control bye{ControlType::bye, status};
  connection->closed.store(true);
  // Best effort: the shutdown says it too, even where a forked child still holds the socket. Of an
  // outbound channel it also says that this process writes into the peer's memory no more; of an
  // inbound one we wait for the peer to say so.
  if (connection->process) (void)send_message(connection->socket.get(), &bye, sizeof(bye));
  ::shutdown(connection->socket.get(), connection->outbound ? SHUT_RDWR : SHUT_WR);
  (void)command({Command::Type::close, {}, connection});
}

void Bootstrap::stop_listening() noexcept {
  x_closing = true;
  (void)command({Command::Type::stop_listening});
}

void* Bootstrap::entry(void* self) noexcept {
  static_cast<Bootstrap*>(self)->run();
  return nullptr;
}

void Bootstrap::run() noexcept {
  while (!x_stop) serve(kEvents, timeout());
}

int Bootstrap::serve(int most, int timeout) noexcept {
  epoll_event events[kEvents];
  const int count = epoll_wait(x_epoll.get(), events, most, timeout);
  for (int i = 0; i < count; ++i)
    survive("serving a connection", [&] { dispatch(events[i].data.u64); });
  survive("connecting", [&] { expire(); });
  return count;
}

void Bootstrap::dispatch(uint64_t event) {
  const uint64_t id = event >> 2;
  if ((event & 3) == kCommands) return run_commands();
  if ((event & 3) == kListener) return accept_some();
  if ((event & 3) == kProcess) return on_exit(id);
  const auto found = x_connections.find(id);
  if (found == x_connections.end()) return;
  const ConnectionPtr connection = found->second;
  switch (connection->state) {
    case ConnectionState::awaiting_hello:
      return on_hello(connection);
    case ConnectionState::awaiting_welcome:
      return on_welcome(connection);
    case ConnectionState::up:
      return on_control(connection);
    case ConnectionState::lost:
    case ConnectionState::leaving:
      return on_sender_event(connection);
    case ConnectionState::connecting:
    case ConnectionState::hung_up:
      return;
  }
}

void Bootstrap::run_commands() {
  drain_eventfd(x_command_fd.get());
  std::vector<Command> commands;
  {
    std::lock_guard guard(x_mutex);
    commands.swap(x_commands);
  }
  for (Command& command : commands) {
    if (command.type == Command::Type::close) {
      end_channel(command.connection);
    } else if (command.type == Command::Type::trust) {
      on_trust(command.request.address);
    } else if (command.type == Command::Type::stop_listening) {
      close_listener();
    } else {
      begin_connect(command.request);
    }
  }
}

int Bootstrap::timeout() const noexcept {
  uint64_t next = x_listen_again ? x_listen_again : UINT64_MAX;
  for (const auto& [id, connection] : x_connections)
    if (connection->deadline) next = std::min(next, connection->deadline);
  if (next == UINT64_MAX) return -1;
  const uint64_t now = x_config.clock->now();
  return next <= now ? 0 : int((next - now) / kMillisecond) + 1;
}

void Bootstrap::expire() {
  const uint64_t now = x_config.clock->now();
  if (x_listen_again && x_listen_again <= now) {
    x_listen_again = 0;
    if (x_listener) watch(x_listener.get(), event_of(kListener, 0));
  }
  std::vector<ConnectionPtr> due;
  for (const auto& [id, connection] : x_connections)
    if (connection->deadline && connection->deadline <= now) due.push_back(connection);
  for (const ConnectionPtr& connection : due) {
    connection->deadline = 0;
    if (connection->state == ConnectionState::connecting) {
      try_connect(connection);
    } else if (connection->state == ConnectionState::awaiting_welcome) {
      // Stopped or very slow is not dead: its socket tells when it is.
      ERDMA_INFO(EP_CTRL, "%s takes its time to answer; waiting\n",
                 connection->request.address.to_string().c_str());
    } else if (connection->state == ConnectionState::awaiting_hello) {
      ERDMA_INFO(EP_CTRL, "a connection said nothing for 5 s: closed\n");
      drop(connection);
    } else {
      lose(connection, -FI_ESHUTDOWN);
    }
  }
}

void Bootstrap::watch(int fd, uint64_t event) {
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u64 = event;
  if (epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, fd, &wanted))
    ERDMA_WARN(EP_CTRL, "epoll_ctl: %s\n", util::ErrorText(errno).c_str());
}

void Bootstrap::unwatch(int fd) noexcept {
  epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Bootstrap::ConnectionPtr Bootstrap::add(ConnectionPtr connection) {
  connection->id = x_next_id++;
  x_connections.emplace(connection->id, connection);
  return connection;
}

void Bootstrap::drop(const ConnectionPtr& connection) noexcept {
  // What is taken out lives until the end: `connection` may be a part of it.
  const auto alive = x_connections.extract(connection->id);
  if (alive.empty()) return;
  if (connection->socket) unwatch(connection->socket.get());
  if (connection->state == ConnectionState::awaiting_hello) --x_pending_hellos;
  PeerProcess* process = connection->process.get();
  if (!process) return;
  std::erase(process->connections, connection.get());
  if (!process->connections.empty()) return;
  if (process->life->pidfd() >= 0) unwatch(process->life->pidfd());
  x_processes.erase(process->id);
}

}  // namespace erdma::transport::shm
