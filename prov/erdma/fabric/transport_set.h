#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"
#include "util/socket_address.h"

namespace erdma::fabric {

/// The transports of one endpoint, made by the domain, the composition root, at fi_enable. Empty
/// until then. The caller holds the domain lock.
/// Invariant: self, shm and nic are null or owned by `all`.
struct TransportSet {
  util::SocketAddress name;  ///< of the endpoint, with its port
  transport::Transport* self = nullptr;
  transport::Transport* shm = nullptr;
  transport::Transport* nic = nullptr;
  std::vector<std::unique_ptr<transport::Transport>> all;  ///< in the order of polling

  transport::Transport* add(std::unique_ptr<transport::Transport> transport) {
    all.push_back(std::move(transport));
    return all.back().get();
  }
  std::vector<transport::Transport*> pointers() const {
    std::vector<transport::Transport*> result;
    for (const auto& transport : all) result.push_back(transport.get());
    return result;
  }

  /// True = each of them wakes whoever sleeps on its descriptor.
  bool arm() noexcept {
    for (const auto& transport : all)
      if (!transport->arm()) return false;
    return true;
  }
  void disarm() noexcept {
    for (const auto& transport : all) transport->disarm();
  }
  void shutdown() noexcept {
    for (const auto& transport : all) transport->shutdown();
  }
  /// As ProgressSource::wait_fds().
  int wait_fds(int* fds, int room) const noexcept {
    int count = 0;
    for (const auto& transport : all) {
      const int fd = transport->wait_fd();
      if (fd < 0) continue;
      if (count < room) fds[count] = fd;
      ++count;
    }
    return count;
  }
};

}  // namespace erdma::fabric
