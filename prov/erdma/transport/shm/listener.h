#pragma once

#include <cstdint>

#include "transport/endpoint_thread.h"
#include "transport/shm/connections.h"
#include "util/fd.h"

namespace erdma::transport::shm {

/// The socket that listens under an endpoint's name and admits connections. Connector's thread
/// only.
class Listener {
 public:
  Listener(Connections& connections, EndpointThread& thread) noexcept
      : x_connections(connections), x_thread(thread) {}

  /// Binds the name, and picks a port if it has none. 0 or -FI_EADDRINUSE, ...
  int bind(util::SocketAddress& name);
  /// Accepts: adds connections that await a hello.
  void accept();
  void close() noexcept;
  void abandon() noexcept;
  void resume(uint64_t now) noexcept;
  uint64_t deadline() const noexcept { return x_again ? x_again : UINT64_MAX; }

 private:
  int take(const util::SocketAddress& name);
  int listen() noexcept { return x_thread.watch(x_socket.get(), event_of(kListener, 0)); }
  void pause(uint64_t nanoseconds) noexcept;
  bool has_room();
  void admit(util::Fd socket);

  Connections& x_connections;
  EndpointThread& x_thread;
  util::Fd x_socket;
  util::Fd x_reserved;   ///< NameScope::host: keeps the name from endpoints of one address
  uint64_t x_again = 0;  ///< when to listen again; 0 = listening
  bool x_exhaustion_logged = false;
};

}  // namespace erdma::transport::shm
