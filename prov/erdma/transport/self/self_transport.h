#pragma once

#include <memory>

#include "transport/transport.h"

namespace erdma::transport::self {

/// The loopback of an endpoint to itself. Packets wait in memory until poll(); get() and put() copy
/// inside the process. Its only link goes down only if the protocol fails it, and is up again
/// once that is reported.
class SelfTransport final : public Transport {
 public:
  explicit SelfTransport(const util::SocketAddress& name);
  ~SelfTransport() override;

  int poll(Sink& sink) noexcept override;
  /// Returns the only link if `address` is this endpoint's own, otherwise -FI_EHOSTUNREACH.
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept override;
  int wait_fd() const noexcept override { return -1; }
  bool arm() noexcept override;
  void disarm() noexcept override {}
  void shutdown() noexcept override {}

 private:
  class Loop;
  std::unique_ptr<Loop> x_loop;
};

}  // namespace erdma::transport::self
