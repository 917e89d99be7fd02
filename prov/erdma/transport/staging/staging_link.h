#pragma once

#include <memory>
#include <vector>

#include "hmem/device_memory.h"
#include "transport/staging/offers.h"
#include "transport/staging/staging_transport.h"

namespace erdma::transport::staging {

/// Device memory that was exposed as a copy in host memory.
struct Exposed {
  Exposure exposure;
  Transfer transfer;
};

/// A link on top of a link of the inner transport, which it never outlives.
class StagingLink final : public Link {
 public:
  StagingLink(Staging& staging, Link& inner) noexcept
      : Link(inner.address()), x_staging(staging), x_inner(inner), x_theirs(staging.cuda) {}

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override;
  LinkLimits limits() const noexcept override { return x_inner.limits(); }
  int expose(const iovec* memory, size_t count, size_t length, Access access,
             Exposure& exposure) noexcept override;
  int withdraw(const Exposure& exposure) noexcept override;
  void refused(const Exposure& exposure) noexcept override;
  int read(const Exposure& remote, const iovec* local, size_t count, size_t length,
           uint64_t token) noexcept override;
  int write(const Exposure& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept override;
  int settle(const iovec* memory, size_t count, uint64_t token) noexcept override;
  bool opens_memory() const noexcept override { return x_inner.opens_memory(); }
  std::unique_ptr<OpenMemory> open(const iovec& memory, bool for_reads,
                                   bool for_writes) noexcept override;
  bool lends_memory() const noexcept override { return x_inner.lends_memory(); }
  int lend(const iovec& memory, bool for_reads, bool for_writes,
           Exposure& exposure) noexcept override;
  void recall(const Exposure& exposure) noexcept override { x_inner.recall(exposure); }
  bool unused() noexcept override { return x_inner.unused(); }
  void recalled() noexcept override { x_inner.recalled(); }
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
  bool met() const noexcept override { return x_inner.met(); }
  bool left() const noexcept override { return x_inner.left(); }
  void hold(bool on) noexcept override { x_inner.hold(on); }
  void addressed() noexcept override { x_inner.addressed(); }

  /// The peer is gone: closes the mappings of its memory.
  void forget_peer() noexcept;

 private:
  hmem::DeviceMemory& device_memory() const noexcept { return x_staging.device_memory; }
  bool offer(const iovec* memory, size_t count, Exposure& exposure) noexcept;
  int read_offer(const Exposure& remote, const iovec* local, size_t count, size_t length,
                 uint64_t token) noexcept;
  int transfer(const Exposure& remote, const iovec* local, size_t count, size_t length,
               uint64_t token, bool inbound) noexcept;
  int direct_transfer(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                      bool inbound, bool until_placed) noexcept;
  int stage(Transfer& transfer, const iovec*& local, size_t& count, iovec& staged) noexcept;

  Staging& x_staging;
  Link& x_inner;
  std::vector<Exposed> x_exposed;
  PeerMemory x_theirs;
  HandedMemory x_ours;
  unsigned x_pause = 0;       ///< messages until the next offer
  unsigned x_next_pause = 0;  ///< half of the pause that the next refusal sets
};

}  // namespace erdma::transport::staging
