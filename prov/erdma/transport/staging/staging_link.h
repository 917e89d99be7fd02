#pragma once

#include <memory>
#include <vector>

#include "hmem/device_memory.h"
#include "transport/staging/staging_transport.h"

namespace erdma::transport::staging {

/// Memory that was exposed through a copy.
struct Exposed {
  Exposure exposure;
  Transfer transfer;
};

/// A link over another one, which it never outlives.
class StagingLink final : public Link {
 public:
  StagingLink(Staging& staging, Link& inner) noexcept
      : Link(inner.address()), x_staging(staging), x_inner(inner) {}

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override;
  LinkLimits limits() const noexcept override { return x_inner.limits(); }
  int expose(const iovec* memory, size_t count, size_t length, Access access,
             Exposure& exposure) noexcept override;
  int withdraw(const Exposure& exposure) noexcept override;
  int read(const Exposure& remote, const iovec* local, size_t count, size_t length,
           uint64_t token) noexcept override;
  int write(const Exposure& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept override;
  int settle(const iovec* memory, size_t count, uint64_t token) noexcept override;
  bool opens_memory() const noexcept override { return x_inner.opens_memory(); }
  std::unique_ptr<OpenMemory> open(const iovec& memory, bool for_reads,
                                   bool for_writes) noexcept override;
  int read_direct(const RemoteRange& remote, const iovec* local, size_t count,
                  uint64_t token) noexcept override;
  int write_direct(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                   bool until_placed) noexcept override;
  void fail(int status) noexcept override { x_inner.fail(status); }
  bool met() const noexcept override { return x_inner.met(); }
  void hold(bool on) noexcept override { x_inner.hold(on); }

 private:
  hmem::DeviceMemory& device_memory() const noexcept { return x_staging.device_memory; }
  int transfer(const Exposure& remote, const iovec* local, size_t count, size_t length,
               uint64_t token, bool inbound) noexcept;
  int direct_transfer(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                      bool inbound, bool until_placed) noexcept;
  int stage(Transfer& transfer, const iovec*& local, size_t& count, iovec& staged) noexcept;

  Staging& x_staging;
  Link& x_inner;
  std::vector<Exposed> x_exposed;
};

}  // namespace erdma::transport::staging
