#pragma once

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
  /// The optional interfaces are those of the inner link, as they take no device memory. The fast
  /// path is left out, because it does not check for device memory.
  StagingLink(Staging& staging, Link& inner) noexcept
      : Link(inner.address(), without_fast_path(inner.optional())),
        x_staging(staging),
        x_inner(inner),
        x_counters(staging.counters_of(inner.address())),
        x_mappings(staging.cuda) {}

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override;
  LinkLimits limits() const noexcept override {
    const LinkLimits inner = x_inner.limits();
    return {inner.eager, inner.prefers_read};
  }
  int share(const iovec* memory, size_t count, size_t length, Access access,
            RemoteKey& remote_key) noexcept override;
  int revoke(const RemoteKey& remote_key) noexcept override;
  void revoke_early(const RemoteKey& remote_key, Early why) noexcept override;
  int get(const RemoteRange& remote, const iovec* local, size_t count,
          uint64_t token) noexcept override;
  int put(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
          bool until_placed) noexcept override;
  int flush(const iovec* memory, size_t count, uint64_t token) noexcept override;
  void fail(int status) noexcept override { x_inner.fail(status); }
  bool was_up() const noexcept override { return x_inner.was_up(); }
  LinkReport report() noexcept override { return x_inner.report(); }
  void hold(bool on) noexcept override { x_inner.hold(on); }
  void addressed() noexcept override { x_inner.addressed(); }

  /// The peer is gone: closes the mappings of its memory.
  void forget_peer() noexcept;

 private:
  static OptionalInterfaces without_fast_path(OptionalInterfaces inner) noexcept {
    inner.fast = nullptr;
    return inner;
  }
  hmem::DeviceMemory& device_memory() const noexcept { return x_staging.device_memory; }
  bool share_ipc(const iovec* memory, size_t count, RemoteKey& remote_key) noexcept;
  int read_ipc(const RemoteRange& remote, const iovec* local, size_t count,
               uint64_t token) noexcept;
  int transfer(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
               bool inbound, bool until_placed) noexcept;
  bool must_stage(const RemoteKey& remote, const iovec* local, size_t count, bool inbound) noexcept;
  int transfer_device(Transfer& transfer, const RemoteRange& remote, const iovec* local,
                      size_t count, bool until_placed) noexcept;
  [[gnu::always_inline]] int begin(Transfer& transfer, const RemoteRange& remote,
                                   const iovec* local, size_t count, bool until_placed) noexcept;
  int stage(Transfer& transfer, const iovec*& local, size_t& count, iovec& staged) noexcept;

  Staging& x_staging;
  Link& x_inner;
  GpuCounters& x_counters;
  std::vector<SharedMemory> x_shared;
  IpcMappings x_mappings;
  PassedAllocations x_passed;
  unsigned x_pause = 0;       ///< messages until the next offer
  unsigned x_next_pause = 0;  ///< half of the pause that the next refusal sets
};

}  // namespace erdma::transport::staging
