#include "transport/verbs/packet_receiver.h"

namespace erdma::transport::verbs {

void PacketReceiver::grow() noexcept {
  if (x_receives.grown() || !x_shared.may_grow()) return;
  Slab slab;
  const auto bytes = uint32_t(kPacketOverhead + x_shared.options.eager_bytes + 63) & ~63u;
  if (slab.make(x_shared.device, kLargeReceives, bytes)) {
    x_shared.growth_failed = true;
    return;
  }
  if (const int rc = x_receives.grow(slab))
    return x_host.broken(rc, "a receive could not be posted");
  ++x_shared.grown;
  x_sender.credits().grow(kLargeReceives);
  x_sender.due(kDueGrow);
}

void PacketReceiver::repost() noexcept {
  if (!has_batch()) return;
  uint32_t count = 0;
  if (const int rc = x_receives.repost(count))
    return x_host.broken(rc, "a receive could not be posted");
  x_sender.credits().repost(count);
  if (x_receives.drop_small()) x_sender.credits().shrink(x_receives.small_slots());
}

}  // namespace erdma::transport::verbs
