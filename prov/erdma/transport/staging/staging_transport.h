#pragma once

#include <memory>
#include <unordered_map>

#include "transport/counters.h"
#include "transport/direct_source.h"
#include "transport/lack_of_memory.h"
#include "transport/staging/flusher.h"
#include "transport/staging/ipc_memory.h"
#include "transport/transport.h"
#include "util/pool.h"

namespace erdma::hmem {
class DeviceMemory;
}

namespace erdma::transport::staging {

class StagingLink;

/// An operation of the inner transport, with its copy in host memory if it is staged.
struct Transfer {
  uint64_t token = 0;                 ///< token of the protocol
  std::unique_ptr<std::byte[]> host;  ///< null: the operation is not staged
  bool inbound = false;               ///< the copy goes to `memory` at the end
  size_t count = 0;
  size_t length = 0;
  iovec memory[kMaxIov];
};

/// What the links of one transport have in common.
struct Staging {
  hmem::DeviceMemory& device_memory;
  DirectSource* direct;   ///< of the inner transport; may be null
  hmem::Cuda* cuda;       ///< null: peers are on other hosts, or may not map memory
  PeerCounters* by_peer;  ///< each link counts there; null: in `counters`
  Flusher flusher;
  GpuCounters counters{};
  IpcReads reads{cuda};
  util::Pool<Transfer> transfers{};
  LackOfMemory lack{};

  GpuCounters& counters_of(const util::SocketAddress& peer) noexcept {
    return by_peer ? by_peer->gpu_counters_of(peer) : counters;
  }
  /// Ends a transfer: copies the bytes to their memory. Returns the status of the operation.
  int finish(Transfer& transfer, int status) noexcept;
  /// The token of a transfer for the inner transport.
  uint64_t token_of(Transfer& transfer) noexcept { return transfers.handle(transfer).number(); }
};

/// Wraps a transport, so that its links take device memory too. Bytes of device memory are staged:
/// copied through host memory of the provider. There are two exceptions. First, the inner transport
/// reaches memory itself where `direct` says so; what it wrote is flushed by READs of that memory
/// (flusher.h). Second, the receiver of a long message inside a host maps the sender's memory
/// (ipc_memory.h). Only endpoints with FI_HMEM have this wrapper. Invariant: the inner transport
/// sees no other device memory.
class StagingTransport final : public Transport {
 public:
  /// `name`: of the endpoint, needed with `direct`. `cuda`: for a transport whose peers are on this
  /// host and may map device memory. `by_peer` outlives the transport.
  StagingTransport(std::unique_ptr<Transport> inner, hmem::DeviceMemory& device_memory,
                   DirectSource* direct = nullptr, const util::SocketAddress& name = {},
                   hmem::Cuda* cuda = nullptr, PeerCounters* by_peer = nullptr) noexcept;
  ~StagingTransport() override;

  int poll(Sink& sink) noexcept override;
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept override;
  int wait_fd() const noexcept override { return x_inner->wait_fd(); }
  bool arm() noexcept override {
    return !x_staging.lack.felt() && !x_staging.flusher.pending() && x_staging.reads.empty() &&
           x_inner->arm();
  }
  void disarm() noexcept override { x_inner->disarm(); }
  void show_core(const CoreUse& use) noexcept override { x_inner->show_core(use); }
  bool peer_shows(const CoreUse& use) noexcept override { return x_inner->peer_shows(use); }
  void shutdown() noexcept override { x_inner->shutdown(); }

 private:
  class Relay;

  /// The link on top of a link of the inner transport. Throws std::bad_alloc.
  StagingLink& over(Link& inner);
  static StagingLink* known(const Link& inner) noexcept;

  const std::unique_ptr<Transport> x_inner;
  Staging x_staging;
  std::unordered_map<const Link*, std::unique_ptr<StagingLink>> x_links;
};

}  // namespace erdma::transport::staging
