#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transport/verbs/packet.h"
#include "transport/verbs/packet_sender.h"
#include "transport/verbs/receive_queue.h"
#include "transport/verbs/resources.h"

namespace erdma::transport::verbs {

/// The receiving side of one connection: checks what the peer sends, and posts receives. It begins
/// with few small receives; a peer that would use more gets them.
class PacketReceiver {
 public:
  static constexpr uint32_t kSmallReceives = 8;
  static constexpr uint32_t kSmallReceiveBytes = 1024;
  static constexpr uint32_t kLargeReceives = 56;
  static constexpr uint32_t kReceiveDepth = kSmallReceives + kLargeReceives;

  struct Packet {
    Prefix prefix;
    const std::byte* body;
    size_t length;  ///< of the body
  };

  PacketReceiver(Resources& shared, PacketSender& sender, ConnectionHost& host) noexcept
      : x_shared(shared), x_sender(sender), x_host(host) {}
  ~PacketReceiver() {
    if (x_receives.grown()) --x_shared.grown;
  }
  PacketReceiver(const PacketReceiver&) = delete;
  PacketReceiver& operator=(const PacketReceiver&) = delete;

  int make() noexcept {
    return x_receives.make(x_shared.receive_regions, kSmallReceives, kSmallReceiveBytes);
  }
  int start(ibv_qp* qp, uint32_t connection) noexcept { return x_receives.start(qp, connection); }

  /// Gives the packet in the completed receive. False: the connection is broken, or it must not
  /// deliver packets any more.
  [[nodiscard]] bool take(const ibv_wc& wc, Packet& packet) noexcept;
  /// Makes take() give the last packet again, without its credits.
  void put_back() noexcept {
    std::byte* const bytes = x_receives.put_back();
    Prefix prefix;
    std::memcpy(&prefix, bytes, sizeof(prefix));
    prefix.credits = 0;
    std::memcpy(bytes, &prefix, sizeof(prefix));
  }
  /// Skips a receive that failed.
  void skip(const ibv_wc& wc) noexcept {
    ReceiveQueue::Slot slot;
    (void)x_receives.take(wc.wr_id, slot);
  }
  /// Delivers nothing more.
  void mute() noexcept { x_muted = true; }
  bool muted() const noexcept { return x_muted; }

  bool has_batch() const noexcept { return x_receives.idle() >= x_receives.batch(); }
  void repost() noexcept;
  /// Posts more and larger receives, and tells the peer.
  void grow() noexcept;
  GrowBody grown() const noexcept {
    return {uint32_t(x_receives.grown_from()), x_receives.large_bytes()};
  }
  uint32_t outstanding() const noexcept { return x_receives.outstanding(); }
  uint64_t taken() const noexcept { return x_receives.taken(); }

 private:
  Resources& x_shared;
  PacketSender& x_sender;
  ConnectionHost& x_host;
  bool x_muted = false;
  ReceiveQueue x_receives;
};

inline bool PacketReceiver::take(const ibv_wc& wc, Packet& packet) noexcept {
  const auto reject = [&](int status, const char* why) {
    x_host.broken(status, why);
    return false;
  };
  ReceiveQueue::Slot slot;
  if (!x_receives.take(wc.wr_id, slot)) [[unlikely]]
    return reject(-FI_EIO, "a completion of a receive was lost");
  if (x_muted) [[unlikely]]
    return false;
  if (wc.byte_len < sizeof(Prefix) || wc.byte_len > slot.capacity) [[unlikely]]
    return reject(-FI_ECONNRESET, "the peer sent a packet of impossible length");
  std::memcpy(&packet.prefix, slot.bytes, sizeof(Prefix));
  if (!x_sender.credits().receive(packet.prefix.credits)) [[unlikely]]
    return reject(-FI_ECONNRESET, "the peer claims to have posted more receives than it can");
  packet.body = slot.bytes + kPrefixBytes;
  packet.length = wc.byte_len - kPrefixBytes;
  return true;
}

inline void PacketReceiver::grow() noexcept {
  if (x_receives.grown() || !x_shared.may_grow()) return;
  ReceiveSlots large;
  const auto bytes = uint32_t(kPacketOverhead + x_shared.options.eager_bytes + 63) & ~63u;
  const size_t all = size_t(kLargeReceives) * bytes;
  RefusedSize& refused = x_shared.large_receives;
  if (all > x_shared.device.limits().max_region || refused.refuses(all)) return;
  if (large.make(x_shared.receive_regions, kLargeReceives, bytes)) return refused.failed(all, true);
  (void)refused.made(all);
  ++x_shared.grown;  // also if this fails: some receives may be posted, and keep the memory
  if (const int rc = x_receives.grow(large))
    return x_host.broken(rc, "a receive could not be posted");
  x_sender.credits().grow(kLargeReceives);
  x_sender.due().add(kDueGrow);
}

inline void PacketReceiver::repost() noexcept {
  if (!has_batch()) return;
  uint32_t count = 0;
  if (const int rc = x_receives.repost(count))
    return x_host.broken(rc, "a receive could not be posted");
  x_sender.credits().repost(count);
  if (x_receives.drop_small()) x_sender.credits().shrink(x_receives.small_slots());
}

}  // namespace erdma::transport::verbs
