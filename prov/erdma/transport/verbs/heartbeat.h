#pragma once

#include <cstdint>

#include "transport/verbs/packet_sender.h"

namespace erdma::transport::verbs {

/// READs of eight bytes from the peer, which do not involve its processor: they show that the peer
/// is alive, and prove that everything sent before has arrived.
class HeartbeatReads {
 public:
  HeartbeatReads(Resources& shared, PacketSender& sender) noexcept
      : x_shared(shared), x_sender(sender) {}
  void agree(const Terms& peer) noexcept {
    x_address = peer.heartbeat_address;
    x_rkey = peer.heartbeat_rkey;
  }

  /// Posts a heartbeat, unless one is in flight or there is no room.
  void post() noexcept {
    if (!x_pending && x_sender.queue().room()) x_pending = !post(Work::Type::heartbeat, nullptr);
  }
  /// Posts a READ behind what `transfer` wrote. -FI_EAGAIN: nothing happened.
  int post(Work::Type type, Transfer* transfer) noexcept {
    const ScratchMemory& mine = x_shared.heartbeat;
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_READ;
    request.wr.rdma = {x_address, x_rkey};
    Work work{};
    work.type = type;
    work.transfer = transfer;
    return x_sender.post(request, {mine.buffer_address, sizeof(uint64_t), mine.buffer_lkey}, work);
  }
  bool pending() const noexcept { return x_pending; }
  void answered() noexcept { x_pending = false; }

 private:
  Resources& x_shared;
  PacketSender& x_sender;
  uint64_t x_address = 0;
  uint32_t x_rkey = 0;
  bool x_pending = false;
};

}  // namespace erdma::transport::verbs
