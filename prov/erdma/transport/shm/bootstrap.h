#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/shm/cold_rings.h"
#include "transport/shm/connection.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/options.h"
#include "transport/shm/unix_socket.h"
#include "transport/shm/wire.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/rate_limit.h"
#include "util/result.h"

namespace erdma::transport::shm {

/// What an epoll event names: the lowest two bits are the sort, the rest an id.
enum EventSort : uint64_t { kCommands, kListener, kSocket, kProcess };
constexpr uint64_t event_of(EventSort sort, uint64_t id) noexcept {
  return id << 2 | sort;
}

struct BootstrapConfig {
  Options options;
  util::SocketAddress name;  ///< port 0 = pick one
  Mailbox* mailbox;
  ColdRings* rings;
  CmaCalls* calls;
  const util::Clock* clock;
  DoorbellAddress doorbell;
  bool expedited;  ///< this process registered for barriers
};

/// The background thread of one endpoint: listens, connects, shakes hands, reads control sockets,
/// watches for deaths. Asleep in epoll otherwise. Tells the polling thread by mail only.
class Bootstrap {
 public:
  static util::Result<std::unique_ptr<Bootstrap>> start(const BootstrapConfig& config);
  ~Bootstrap();

  /// In a forked child: closes descriptors. Not followed by destruction.
  void abandon() noexcept;

  const util::SocketAddress& name() const noexcept { return x_config.name; }
  /// In a host-wide scope every peer is on this host, under whichever of its IPs it is known.
  util::SocketAddress canonical(const util::SocketAddress& address) const noexcept;
  /// Polling thread: begins to connect; out_up or out_failed will come.
  int connect(const ConnectRequest& request) noexcept;
  /// Polling thread: the application itself addressed this peer. 0 or -FI_ENOMEM.
  int trust(const util::SocketAddress& peer) noexcept;
  /// Polling thread: says bye with `status` and ends the channel. No more mail matters.
  void close(const std::shared_ptr<Connection>& connection, int status) noexcept;
  /// Polling thread: takes no more connections.
  void stop_listening() noexcept;
  /// Where there is no thread (Options::background): what it would do about one event, at most.
  /// False: there was none.
  bool step() noexcept { return serve(1, 0) > 0; }

 private:
  struct Command {
    enum class Type : uint8_t { connect, trust, close, stop_listening } type;
    ConnectRequest request = {};
    std::shared_ptr<Connection> connection = nullptr;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  explicit Bootstrap(const BootstrapConfig& config);
  int start_thread();
  int command(Command command) noexcept;

  // bootstrap.cc: the loop
  static void* entry(void* self) noexcept;
  void run() noexcept;
  int serve(int most, int timeout) noexcept;
  void dispatch(uint64_t event);
  void run_commands();
  int timeout() const noexcept;
  void expire();
  void watch(int fd, uint64_t event);
  void unwatch(int fd) noexcept;
  ConnectionPtr add(ConnectionPtr connection);
  void drop(const ConnectionPtr& connection) noexcept;

  // listener.cc
  int bind_name();
  void close_listener() noexcept;
  void pause_listener(uint64_t nanoseconds);
  void accept_some();
  void accept_one(util::Fd socket);

  // handshake.cc
  Greeting greeting() const noexcept;
  void begin_connect(const ConnectRequest& request, util::Fd socket = {});
  void connect_back(const util::SocketAddress& peer, util::Fd socket);
  ConnectionPtr outbound_to(const util::SocketAddress& address) const noexcept;
  void try_connect(const ConnectionPtr& connection);
  void retry_or_fail(const ConnectionPtr& connection, int status, bool patient);
  void fail(const ConnectionPtr& connection, int status);
  void on_hello(const ConnectionPtr& connection);
  void accept_hello(const ConnectionPtr& connection, const Greeting& greeting);
  void refuse(const ConnectionPtr& connection, const char* why);
  void turn_away(const ConnectionPtr& connection);
  int check_name(const ConnectionPtr& connection, const util::SocketAddress& name, uint64_t nonce,
                 util::Fd& back);
  void on_welcome(const ConnectionPtr& connection);
  void accept_welcome(const ConnectionPtr& connection, const Welcome& welcome, Received& received);
  int meet(const ConnectionPtr& connection, const Greeting& greeting, const char** why);
  util::Result<std::shared_ptr<PeerProcess>> know_process(int socket, pid_t pid,
                                                          const Greeting& greeting,
                                                          const char** why);
  std::shared_ptr<PeerProcess> find_process(uint64_t nonce) const noexcept;
  void hear_out(PeerProcess& process);
  static void settle(Mail& mail) noexcept;
  void go_up(const ConnectionPtr& connection);
  void ask_admission(const ConnectionPtr& connection);
  void ask_proof(const ConnectionPtr& connection);

  // control.cc
  void on_control(const ConnectionPtr& connection);
  bool handle(const ConnectionPtr& connection, const Control& control, util::Fd fd);
  void report_lost_file(const Connection& connection) noexcept;
  bool may_trace(const PeerProcess& process) const noexcept;
  void on_admit(const ConnectionPtr& connection);
  void on_trust(const util::SocketAddress& peer);
  void answer_admission(Connection& connection);
  void on_admit_answer(const ConnectionPtr& connection, int status);
  void on_proof(const ConnectionPtr& connection, uint32_t found);
  void post_verdict(const ConnectionPtr& connection);
  void on_hang_up(const ConnectionPtr& connection);
  void on_exit(uint64_t process);
  void lose(const ConnectionPtr& connection, int status);

  // quarantine.cc
  void end_channel(const ConnectionPtr& connection);
  void await_sender(Connection& connection);
  void on_sender_event(const ConnectionPtr& connection);
  void on_sender_done(const ConnectionPtr& connection);
  bool crowded(const util::SocketAddress& name) const noexcept;

  BootstrapConfig x_config;
  const uint64_t x_nonce;
  const uint64_t x_boot;
  const CmaIdentity x_identity;
  pthread_t x_thread{};
  bool x_running = false;

  std::mutex x_mutex;
  std::vector<Command> x_commands;
  std::atomic<bool> x_stop = false;
  /// Set before the first socket is shut down, so that a channel that is seen to end for that
  /// reason is not made anew.
  std::atomic<bool> x_closing = false;

  // Background thread only:
  util::Fd x_epoll, x_command_fd, x_listener;
  uint64_t x_next_id = 1;
  uint64_t x_listen_again = 0;  ///< when to listen again; 0 = listening
  bool x_exhaustion_logged = false;
  util::RateLimit x_strangers;
  bool x_lost_file_logged = false;
  bool x_owed_logged = false;
  size_t x_pending_hellos = 0;
  std::unordered_map<uint64_t, ConnectionPtr> x_connections;
  std::unordered_set<util::SocketAddress, util::SocketAddressHash> x_addressed;  ///< trusted
  std::unordered_map<uint64_t, std::shared_ptr<PeerProcess>> x_processes;        ///< by id
};

}  // namespace erdma::transport::shm
