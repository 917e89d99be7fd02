#pragma once

#include "transport/link.h"
#include "transport/shm/out_channel.h"

namespace erdma::transport::shm {

/// Packets in one peer's hot ring that can be taken back. Polling thread only.
class RingRetractableSends final : public RetractableSends {
 public:
  explicit RingRetractableSends(OutChannel& out) noexcept : x_out(out) {}

  bool suits(size_t length) noexcept override;
  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           uint64_t& packet) noexcept override;
  bool retract(uint64_t packet) noexcept override;
  void retracted(uint64_t packet, bool executed) noexcept override;
  void ended(uint64_t packet) noexcept override;

 private:
  OutChannel& x_out;
  size_t x_under_way = 0;  ///< packets sent, and neither ended nor executed here
};

}  // namespace erdma::transport::shm
