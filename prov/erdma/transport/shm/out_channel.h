#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/bulk_out.h"
#include "transport/shm/connection.h"
#include "transport/shm/memfd.h"
#include "transport/shm/ordering.h"
#include "transport/shm/region_gate.h"
#include "transport/shm/ring.h"
#include "transport/shm/wake.h"
#include "transport/shm/wire.h"
#include "util/intrusive_list.h"
#include "util/result.h"

namespace erdma::transport::shm {

struct LinkContext;
class OutChannel;

struct BulkOutTag;  ///< the peer may need help with what it reads here

/// The large transfers of a channel. In the list of those that progress must look at.
struct ChannelBulk final : BulkOut, util::ListHook<BulkOutTag> {
  ChannelBulk(OutChannel& of, CmaCalls& calls, CmaPeer& receiver, const CoreSharing& core,
              Counters& counters)
      : BulkOut(calls, receiver, core, counters), channel(of) {}
  ~ChannelBulk() {
    if (linked()) unlink();
  }
  OutChannel& channel;
};

/// What goes to one peer: rings and bulk memory, all owned by the peer. The channel ends with its
/// link but keeps the memory until it begins again, so that a late revoke() finds its remote key.
/// Polling thread only. Invariant: the sender uses one of its rings at a time; the switch to the
/// other is the last entry of the ring that it leaves, and ring() is null while there is no room
/// for the switch.
class OutChannel {
 public:
  OutChannel(LinkContext& context, Counters& counters) noexcept
      : x_context(context), x_counters(counters) {}

  LinkContext& context() const noexcept { return x_context; }
  Counters& counters() const noexcept { return x_counters; }
  bool up() const noexcept { return x_up; }
  bool stopped() const noexcept { return x_stopped; }
  /// `heard`: revocations that this side has been told of over the link.
  void begin(util::Ref<Connection> connection, Memfd chunk, uint32_t index,
             uint64_t heard) noexcept;
  /// Sends nothing more, and tells the receiver.
  void stop() noexcept;
  /// After stop() and before any completion reports it: from now on the shared memory may change.
  void announce_end() const noexcept {
    tell_before_reuse(control().left, uint32_t(SenderState::left));
  }
  void end() noexcept;
  const util::Ref<Connection>& connection() const noexcept { return x_connection; }

  /// Where the next entry is pushed; null: not connected, or a switch is due.
  SlotSender* ring() const noexcept { return x_ring; }
  /// The same, if it is a hot ring; otherwise null.
  RingSender* hot_ring() const noexcept {
    return x_cold ? nullptr : static_cast<RingSender*>(x_ring);
  }
  bool cold() const noexcept { return x_cold; }
  /// Call after an entry was pushed.
  void announce() const noexcept {
    if (x_cold) [[unlikely]]
      show_news();
    wake();
  }
  /// Makes the receiver look at the cold ring and its control words, whichever ring is in use.
  void show_news() const noexcept { or_release(chunk().ready, uint64_t(1) << x_index); }
  void wake() const noexcept {
    if (!wake_if_asleep(chunk().wake, *x_waker)) [[unlikely]]
      wake_later();
  }
  /// Names one packet by its ring and its sequence number.
  uint64_t name_of_packet(uint32_t sequence) const noexcept {
    return uint64_t(x_hot_count) << 32 | sequence;
  }
  bool uses_hot_ring_of(uint64_t packet) const noexcept {
    return x_ring && !x_cold && packet >> 32 == x_hot_count;
  }
  /// The ring whose lack of room blocks the sender; null = something else does.
  SlotSender* blocked_ring() noexcept;

  // Promotion. True = the switch is done.
  void ask_for_hot() noexcept;
  bool offer_hot(Memfd segment) noexcept;
  bool ask_cold() noexcept;
  bool try_switch() noexcept;

  // Large transfers.
  /// Null: out of memory.
  ChannelBulk* begin_bulk(CmaPeer& cma, SharedRegions* region) noexcept;
  ChannelBulk* bulk() const noexcept { return x_bulk.get(); }
  bool bulk_active() noexcept { return x_up && x_bulk && x_bulk->active(); }
  void attach_bulk(Memfd&& segment);  ///< may throw; `segment` then keeps it
  int poll_bulk() noexcept;
  PeerGate& peer_gate() noexcept { return x_borrowing; }
  void ask_for_help() noexcept;

  /// The receiver's; only while up().
  ColdChunk& chunk() const noexcept { return x_chunk.as<ColdChunk>(); }

 private:
  /// A hot ring at the peer, while it is granted.
  struct Hot final : RingBacking {
    Memfd segment;
    hmem::CopyChoice copy;
    RingSender ring;
    bool back_rest() noexcept override { return !segment.back(kHotBackedBytes, kHotRestBytes); }
  };
  enum class Switch : uint8_t { none, to_hot, to_cold };  ///< a switch that is due

  ColdControl& control() const noexcept { return chunk().controls[x_index]; }
  void wake_later() const noexcept;
  void use_ring() noexcept;
  void wait_for_bulk_memory() noexcept;

  // Members that send() uses.
  SlotSender* x_ring = nullptr;
  const Waker* x_waker = nullptr;
  bool x_cold = true;
  bool x_up = false;
  bool x_stopped = false;
  Switch x_switch = Switch::none;
  bool x_asked_for_hot = false;  ///< for a large message, before enough entries were sent
  uint8_t x_yields = 0;          ///< yields of the core before x_bulk_segment had arrived
  uint16_t x_bulk_polls = 0;     ///< polls since the last of these
  uint32_t x_index = 0;          ///< of the cold ring
  uint32_t x_hot_count = 0;      ///< hot rings so far: part of a packet's name
  Memfd x_chunk;
  SlotSender x_cold_ring;
  std::unique_ptr<Hot> x_hot;
  LinkContext& x_context;
  Counters& x_counters;  ///< the link's
  util::Ref<Connection> x_connection;
  PeerGate x_borrowing;
  std::unique_ptr<Memfd> x_bulk_segment;  ///< null until the peer passes it
  std::unique_ptr<ChannelBulk> x_bulk;    ///< declared after its segment, so destroyed before it
};

}  // namespace erdma::transport::shm
