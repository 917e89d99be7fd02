#pragma once

#include <arpa/inet.h>

#include <atomic>
#include <memory>

#include "transport/verbs/connection_backend.h"
#include "transport/verbs/connector.h"
#include "util/socket_address.h"

/// A connection of the connector without a queue pair's data path. It is only counted. It replaces
/// the real class in a program.
namespace erdma::transport::verbs {
class Connection {
 public:
  explicit Connection(std::atomic<int>& alive) : x_alive(alive) { ++x_alive; }
  ~Connection() { --x_alive; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const uint64_t number = next_connection_id();
  QueuePair queue_pair;

 private:
  std::atomic<int>& x_alive;
};
}  // namespace erdma::transport::verbs

[[gnu::weak]] void std::default_delete<erdma::transport::verbs::Connection>::operator()(
    erdma::transport::verbs::Connection* connection) const noexcept {
  delete connection;
}

namespace erdma::test {

inline util::SocketAddress address_of(const char* ip, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, ip, &address.sin_addr);
  return util::SocketAddress::from_sockaddr(&address, sizeof(address));
}

}  // namespace erdma::test
