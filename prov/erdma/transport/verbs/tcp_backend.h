#pragma once

#include <cstdint>
#include <unordered_map>

#include "transport/verbs/connection_backend.h"
#include "transport/verbs/deadlines.h"
#include "transport/verbs/hello_socket.h"
#include "transport/verbs/queue_pairs.h"
#include "transport/verbs/tcp_listener.h"
#include "util/clock.h"
#include "util/fd.h"

namespace erdma::transport::verbs {

/// For ib devices: hellos and the parameters of ibv_modify_qp travel over TCP. The socket stays
/// open as long as the connection, because it shows when the other process or host dies, which the
/// queue pair does not.
class TcpBackend final : public ConnectionBackend {
 public:
  /// `name`: that of the endpoint; it connects to peers from its IP.
  TcpBackend(const util::SocketAddress& name, uint64_t peer_timeout_ns, QueuePairs& queue_pairs,
             const util::Clock& clock) noexcept;

  int listen(util::SocketAddress& name) noexcept override;
  void stop_listening() noexcept override;
  int fd() const noexcept override { return x_epoll.get(); }
  void dispatch(BackendEvents& events) override;
  uint64_t next_deadline() const noexcept override;
  void expire(BackendEvents& events) override;
  int connect(uint64_t id, const util::SocketAddress& peer) noexcept override;
  ibv_qp* create_queue_pair(uint64_t id, ibv_qp_init_attr& attr, Path& own) noexcept override;
  int greet(uint64_t id, const HelloBytes& hello) noexcept override;
  int confirm(uint64_t id) noexcept override;
  void refuse(uint64_t id, const HelloPrefix& refusal) noexcept override;
  bool close(uint64_t id, bool orderly) noexcept override;
  void abandon() noexcept override;

  /// Connected, without a complete hello. Above the limit, a new one replaces the oldest.
  static constexpr size_t kMaxHalfOpen = 256;
  static constexpr uint64_t kHelloTime = 5'000'000'000;

 private:
  enum class State : uint8_t {
    connecting,  ///< active: until the socket is writable
    reached,     ///< active: until greet()
    requested,   ///< active: until welcome or refusal
    half_open,   ///< passive: until the hello is complete
    asked,       ///< passive: within on_request()
    accepted,    ///< passive: until the active side confirms
    up,
    ended,  ///< on_closed() was called
  };
  struct Socket {
    uint64_t id = 0;
    HelloSocket tcp;
    State state = State::half_open;
    uint64_t deadline = 0;  ///< half_open
    Path own{}, peer{};
    ibv_qp* queue_pair = nullptr;  ///< until join()
    util::SocketAddress from;      ///< passive
  };

  void accept_one(util::Fd fd, const util::SocketAddress& from, BackendEvents& events);
  void drop_stranger(Socket& socket, const char* what, bool harmless, BackendEvents& events);
  void on_writable(Socket& socket, BackendEvents& events);
  void on_readable(Socket& socket, BackendEvents& events);
  void on_message(Socket& socket, BackendEvents& events);
  void end(Socket& socket, int status, BackendEvents& events);
  int join(Socket& socket) noexcept;
  void leave_alone(Socket& socket) noexcept;
  bool watch(const Socket& socket, uint32_t events) noexcept;
  Socket* find(uint64_t id) noexcept;

  const util::SocketAddress x_own;
  const uint64_t x_peer_timeout;
  QueuePairs& x_queue_pairs;
  const util::Clock& x_clock;
  util::Fd x_epoll;
  TcpListener x_listener;
  std::unordered_map<uint64_t, Socket> x_sockets;
  Deadlines<Socket> x_half_open;
};

}  // namespace erdma::transport::verbs
