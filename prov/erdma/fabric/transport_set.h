#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "fabric/local_addresses.h"
#include "protocol/engine.h"
#include "transport/transport.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::fabric {

class EndpointStatistics;

/// The transports of one endpoint, and the choice between them for each peer. DomainTransports
/// makes them at fi_enable; until then the set is empty. The caller holds the domain lock.
/// Invariant: `self`, `shm` and `nic` are null or owned by `all`.
struct TransportSet final : protocol::Router {
  util::SocketAddress name;  ///< of the endpoint, with its port
  transport::Transport* self = nullptr;
  transport::Transport* shm = nullptr;
  transport::Transport* nic = nullptr;
  std::vector<std::unique_ptr<transport::Transport>> all;  ///< in the order of polling
  const LocalAddresses* local = nullptr;                   ///< not null if there is `shm`
  bool device_memory = false;                              ///< buffers may be device memory
  EndpointStatistics* statistics = nullptr;  ///< told which transport is used; or null

  util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept override;
  transport::Link* fallback(const util::SocketAddress& address, int status) noexcept override;

  transport::Transport* add(std::unique_ptr<transport::Transport> transport) {
    all.push_back(std::move(transport));
    return all.back().get();
  }
  std::vector<transport::Transport*> pointers() const {
    std::vector<transport::Transport*> result;
    for (const auto& transport : all) result.push_back(transport.get());
    return result;
  }

  /// True: each transport wakes threads that sleep on its descriptor. False: one of them has work.
  bool arm() noexcept {
    for (const auto& transport : all)
      if (!transport->arm()) return false;
    return true;
  }
  void disarm() noexcept {
    for (const auto& transport : all) transport->disarm();
  }
  /// See ProgressSource::show_core().
  bool show_core(const transport::CoreUse& use, bool ask) noexcept {
    bool peer_shows = false;
    for (const auto& transport : all) {
      transport->show_core(use);
      if (ask && !peer_shows) peer_shows = transport->peer_shows(use);
    }
    return peer_shows;
  }
  void shutdown() noexcept {
    for (const auto& transport : all) transport->shutdown();
  }
  /// See ProgressSource::wait_fds().
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

 private:
  transport::Transport* transport_for(const util::SocketAddress& address) noexcept;
  util::Result<transport::Link*> link_by(transport::Transport& transport,
                                         const util::SocketAddress& address) noexcept;

  bool x_fallback_logged = false;
};

}  // namespace erdma::fabric
