#pragma once

#include <memory>

#include "transport/transport.h"
#include "transport/verbs/device.h"
#include "transport/verbs/options.h"
#include "transport/verbs/registration.h"
#include "util/clock.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::transport::verbs {

class Core;

/// All peers of one endpoint that are reached through the NIC: one RC queue pair each, made on
/// first use. One background thread (Connector). Must not be used in a forked child, except to
/// destroy it.
class VerbsTransport final : public Transport {
 public:
  /// Listens under `name` (an IP of the device; port 0 = a free one). `device` and `cache` outlive
  /// the transport; so does `clock` (tests; null = the system's).
  static util::Result<std::unique_ptr<VerbsTransport>> open(const Options& options, Device& device,
                                                            RegistrationCache& cache,
                                                            const util::SocketAddress& name,
                                                            const util::Clock* clock = nullptr);
  ~VerbsTransport() override;

  const util::SocketAddress& name() const noexcept;  ///< with the port that was bound
  const Counters& counters() const noexcept;

  int poll(Sink& sink) noexcept override;
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept override;
  int wait_fd() const noexcept override;
  bool arm() noexcept override;
  void disarm() noexcept override;
  void shutdown() noexcept override;

 private:
  explicit VerbsTransport(std::unique_ptr<Core> core) noexcept;
  std::unique_ptr<Core> x_core;
};

}  // namespace erdma::transport::verbs
