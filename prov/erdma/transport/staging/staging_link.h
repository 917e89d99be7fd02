#pragma once

#include <memory>
#include <vector>

#include "hmem/device_memory.h"
#include "transport/staging/ipc_memory.h"
#include "transport/staging/staging_transport.h"

namespace erdma::transport::staging {

/// Device memory that was shared as a copy in host memory.
struct SharedMemory {
  RemoteKey remote_key;
  Transfer transfer;
};

/// A link on top of a link of the inner transport, which it never outlives.
class StagingLink final : public Link {
 public:
  StagingLink(Staging& staging, Link& inner) noexcept
      : Link(inner.address()), x_staging(staging), x_inner(inner), x_mappings(staging.cuda) {}

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override;
  LinkLimits limits() const noexcept override { return x_inner.limits(); }
  int share(const iovec* memory, size_t count, size_t length, Access access,
            RemoteKey& remote_key) noexcept override;
  int revoke(const RemoteKey& remote_key) noexcept override;
  void revoke_refused(const RemoteKey& remote_key) noexcept override;
  int read(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
           uint64_t token) noexcept override;
  int write(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept override;
  int flush(const iovec* memory, size_t count, uint64_t token) noexcept override;
  bool registers_regions() const noexcept override { return x_inner.registers_regions(); }
  std::unique_ptr<RegisteredRegion> register_region(const iovec& memory, bool for_reads,
                                                    bool for_writes) noexcept override;
  bool shares_regions() const noexcept override { return x_inner.shares_regions(); }
  int share_region(const iovec& memory, bool for_reads, bool for_writes,
                   RemoteKey& remote_key) noexcept override;
  void revoke_region(const RemoteKey& remote_key) noexcept override {
    x_inner.revoke_region(remote_key);
  }
  bool regions_unused() noexcept override { return x_inner.regions_unused(); }
  void region_revoked() noexcept override { x_inner.region_revoked(); }
  int read_direct(const RemoteRange& remote, const iovec* local, size_t count,
                  uint64_t token) noexcept override;
  int write_direct(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                   bool until_placed) noexcept override;
  /// For host memory only: device memory is refused.
  int send_retractable(const Header& header, const iovec* payload, size_t count, size_t length,
                       uint64_t& packet) noexcept override {
    if (device_memory().any_device(payload, count)) return -FI_EOPNOTSUPP;
    return x_inner.send_retractable(header, payload, count, length, packet);
  }
  bool retract(uint64_t packet) noexcept override { return x_inner.retract(packet); }
  void retracted(uint64_t packet, bool executed) noexcept override {
    x_inner.retracted(packet, executed);
  }
  void fail(int status) noexcept override { x_inner.fail(status); }
  bool was_up() const noexcept override { return x_inner.was_up(); }
  bool left() const noexcept override { return x_inner.left(); }
  void hold(bool on) noexcept override { x_inner.hold(on); }
  void addressed() noexcept override { x_inner.addressed(); }

  /// The peer is gone: closes the mappings of its memory.
  void forget_peer() noexcept;

 private:
  hmem::DeviceMemory& device_memory() const noexcept { return x_staging.device_memory; }
  bool share_ipc(const iovec* memory, size_t count, RemoteKey& remote_key) noexcept;
  int read_ipc(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
               uint64_t token) noexcept;
  int transfer(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
               uint64_t token, bool inbound) noexcept;
  int direct_transfer(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                      bool inbound, bool until_placed) noexcept;
  int stage(Transfer& transfer, const iovec*& local, size_t& count, iovec& staged) noexcept;

  Staging& x_staging;
  Link& x_inner;
  std::vector<SharedMemory> x_shared;
  IpcMappings x_mappings;
  PassedAllocations x_passed;
  unsigned x_pause = 0;       ///< messages until the next offer
  unsigned x_next_pause = 0;  ///< half of the pause that the next refusal sets
};

}  // namespace erdma::transport::staging
