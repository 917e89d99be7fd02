#pragma once

#include <cstdint>

#include "transport/verbs/device.h"
#include "transport/verbs/hello.h"
#include "util/clock.h"
#include "util/rate_limit.h"

namespace erdma::transport::verbs {

/// What a back end asks of the device; an interface, so that TCP is tested without a device.
class QueuePairs {
 public:
  virtual ~QueuePairs() = default;
  /// An RC queue pair in INIT, with `id` as its context. Null: failed, and logged.
  virtual ibv_qp* create(uint64_t id, ibv_qp_init_attr& attr) noexcept = 0;
  /// ib only: what the other side must know about it.
  virtual Path describe(const ibv_qp& queue_pair) noexcept = 0;
  /// ib only: moves it to RTS. -FI_EINVAL: the other side's path is invalid.
  [[nodiscard]] virtual int join(ibv_qp& queue_pair, const Path& own,
                                 const Path& peer) noexcept = 0;
};

class DeviceQueuePairs final : public QueuePairs {
 public:
  DeviceQueuePairs(const Device& device, uint64_t peer_timeout_ns) noexcept;
  ibv_qp* create(uint64_t id, ibv_qp_init_attr& attr) noexcept override;
  Path describe(const ibv_qp& queue_pair) noexcept override;
  int join(ibv_qp& queue_pair, const Path& own, const Path& peer) noexcept override;

 private:
  int to_init(ibv_qp& queue_pair) noexcept;
  void log_shortage(int error) noexcept;

  const Device& x_device;
  const uint8_t x_ack_timeout;  ///< 4.096 us x 2^n until a packet is retransmitted
  uint8_t x_mtu = IBV_MTU_1024;
  uint32_t x_next_psn;
  util::RateLimit x_shortage{1};
};

}  // namespace erdma::transport::verbs
