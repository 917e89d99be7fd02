#pragma once

#include <memory>

#include "transport/shm/cma.h"
#include "transport/shm/options.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::transport::shm {

class Core;

/// All peers of one endpoint on this host: rings in shared memory for packets, CMA or bounce slots
/// for bulk. One background thread per transport serves connections and watches for deaths; it
/// touches no ring. Must not be used in a forked child, except to destroy it (closes descriptors).
class ShmTransport final : public Transport {
 public:
  /// Listens under `name`; port 0 = a free one is picked. -FI_EADDRINUSE: an explicit port is
  /// taken. `calls` and `clock` (tests) outlive the transport; null = the system's.
  static util::Result<std::unique_ptr<ShmTransport>> open(const Options& options,
                                                          const util::SocketAddress& name,
                                                          CmaCalls* calls = nullptr,
                                                          const util::Clock* clock = nullptr);
  ~ShmTransport() override;

  const util::SocketAddress& name() const noexcept;  ///< with the port that was bound
  const Counters& counters() const noexcept;

  int poll(Sink& sink) noexcept override;
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept override;
  int wait_fd() const noexcept override;
  bool arm() noexcept override;
  void disarm() noexcept override;
  void shutdown() noexcept override;

 private:
  explicit ShmTransport(std::unique_ptr<Core> core) noexcept;
  std::unique_ptr<Core> x_core;
};

}  // namespace erdma::transport::shm
