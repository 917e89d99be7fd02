#pragma once

#include <memory>
#include <unordered_map>

#include "transport/direct_source.h"
#include "transport/staging/flusher.h"
#include "transport/staging/offers.h"
#include "transport/transport.h"
#include "util/pool.h"

namespace erdma::hmem {
class DeviceMemory;
}

namespace erdma::transport::staging {

class StagingLink;

/// Bytes of an operation that wait in host memory.
struct Transfer {
  uint64_t token = 0;                 ///< the protocol's
  std::unique_ptr<std::byte[]> host;  ///< null: its memory is the host's anyway
  bool inbound = false;               ///< to be copied to `memory` at the end
  size_t count = 0;
  size_t length = 0;
  iovec memory[kMaxIov];
};

/// What the links of one transport share.
struct Staging {
  hmem::DeviceMemory& device_memory;
  DirectSource* direct;  ///< of the inner transport; may be null
  hmem::Cuda* cuda;      ///< peers are of this host, and may read memory where it is; null: not
  Flusher flusher;
  OfferedReads reads{cuda};
  util::Pool<Transfer> transfers{};

  /// The status at the end of a transfer: brings its bytes to where they belong.
  int settle(Transfer& transfer, int status) noexcept;
  /// For the inner transport.
  uint64_t token_of(Transfer& transfer) noexcept {
    const util::PoolHandle handle = transfers.handle(transfer);
    return uint64_t(handle.index) | uint64_t(handle.generation) << 32;
  }
};

/// Another transport, with links that take device memory, too: its bytes are staged, that is copied
/// through host memory of the provider's own, except for what `direct` says the inner transport can
/// reach as it is; what that wrote is flushed by READs of our own memory (flusher.h); and except
/// for long messages inside a host, which the receiver reads where they are (offers.h). For
/// endpoints with FI_HMEM only; others have the transport itself. Invariant: the inner transport
/// sees no other device memory.
class StagingTransport final : public Transport {
 public:
  /// `name`: of the endpoint, needed with `direct`. `cuda`: peers are of this host,
  /// and read device memory where it is.
  StagingTransport(std::unique_ptr<Transport> inner, hmem::DeviceMemory& device_memory,
                   DirectSource* direct = nullptr, const util::SocketAddress& name = {},
                   hmem::Cuda* cuda = nullptr) noexcept;
  ~StagingTransport() override;

  int poll(Sink& sink) noexcept override;
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept override;
  int wait_fd() const noexcept override { return x_inner->wait_fd(); }
  bool arm() noexcept override {
    return !x_staging.flusher.owes() && x_staging.reads.empty() && x_inner->arm();
  }
  void disarm() noexcept override { x_inner->disarm(); }
  void shutdown() noexcept override { x_inner->shutdown(); }

 private:
  class Relay;

  /// The link over one of the inner transport; null: out of memory.
  StagingLink* over(Link& inner) noexcept;
  static StagingLink* known(const Link& inner) noexcept;

  const std::unique_ptr<Transport> x_inner;
  Staging x_staging;
  std::unordered_map<const Link*, std::unique_ptr<StagingLink>> x_links;
};

}  // namespace erdma::transport::staging
