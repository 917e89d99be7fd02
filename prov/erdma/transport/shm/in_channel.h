#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/bulk_operations.h"
#include "transport/shm/connection.h"
#include "transport/shm/memfd.h"
#include "transport/shm/region_gate.h"
#include "transport/shm/ring.h"
#include "transport/shm/wire.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"
#include "util/recent_rates.h"

namespace erdma::transport::shm {

class ShmLink;
struct LinkContext;

struct BulkInTag;  ///< the channel has large transfers under way

/// What one peer sends here: its cold ring, sometimes a hot ring, and bulk transfers that this side
/// drives. Polling thread only. Invariant: a peer uses one of its rings at a time; the switch is
/// the last entry in the ring that it leaves.
class InChannel final : public util::ListHook<BulkInTag> {
 public:
  InChannel(LinkContext& context, ShmLink& link, util::Ref<Connection> connection) noexcept;

  bool hot() const noexcept { return x_current != &x_cold; }
  bool ready() const noexcept { return x_current->ready(); }
  /// The ring that the peer uses.
  const RingReceiver& ring() const noexcept { return *x_current; }
  /// Delivers what has arrived, within bounds. Returns the number of entries.
  int drain(Sink& sink) noexcept;

  /// Delivers nothing more.
  void stop() noexcept { x_intake = Intake::stopped; }
  /// Leaves entries in their ring, or delivers them again. No effect once the channel ends.
  void hold(bool on) noexcept;
  /// Delivers everything in the ring, held or not. `silent`: its sender changes nothing there any
  /// more. False: some entries wait for memory, or for room on the control socket.
  bool deliver_rest(Sink& sink, bool silent) noexcept;
  /// The ring is no longer polled, and the peer begins no access to what was shared with it.
  void end() noexcept;

  /// Gives the sender a hot ring. 0 or negative errno.
  int grant_hot() noexcept;
  /// `count` entries came through the cold ring. True: often enough that a hot ring pays.
  bool should_promote(int count) noexcept;
  /// Here or at the sender there is no memory for a hot ring: ask again later, after a longer pause
  /// each time. Drops the ring, if there is one.
  void put_off_promotion() noexcept;
  void ask_to_demote() noexcept;
  bool granted() const noexcept { return bool(x_hot); }
  bool demoting() const noexcept { return x_demoting; }
  uint64_t last_active() const noexcept { return x_last_active; }
  /// Something has arrived or is about to arrive.
  bool in_use() const noexcept { return x_delivered || ready() || (x_bulk && x_bulk->active()); }

  // As in BulkOperations.
  int read(const RemoteKey& remote, const iovec* local, size_t count, size_t length, uint64_t token,
           const RemoteWrite* write) noexcept;
  int access(CmaCall call, const SharedRegion& region, uint64_t offset, const iovec* local,
             size_t count, size_t length, uint64_t token) noexcept;
  /// Counts the peer's accesses to what was shared with it.
  OwnerGate owner_gate() noexcept { return OwnerGate(x_connection->control()); }
  /// The peer may be inside an access to a shared region.
  bool regions_in_use() noexcept { return owner_gate().inside() && !sender_dead(); }
  /// Null: there has been no large transfer.
  BulkOperations* bulk() const noexcept { return x_bulk.get(); }
  /// Stops the peer from beginning accesses to local memory. False: an access may be under way.
  bool quiesce() noexcept;
  /// Waits for that, a tenth of a second at most; only for callers that cannot call again later.
  void await_quiet() noexcept;
  /// Ends the peer's writes to this target and no others; waits in the same way.
  void end_writes(util::PoolHandle target, Sink& sink, int status) noexcept;
  /// The sender gave the channel up.
  bool sender_left() const noexcept;
  void wake_waiting_sender() noexcept;

  ShmLink& link() const noexcept { return x_link; }
  const util::Ref<Connection>& connection() const noexcept { return x_connection; }

 private:
  static constexpr uint32_t kPromoteAfter = 16;
  static constexpr uint32_t kAskAgainAfter = 1024;  ///< entries, after a request without effect
  static constexpr uint32_t kLongestPause = 1 << 24;
  static constexpr uint32_t kTimedEvery = 8;  ///< of the long payloads

  /// A hot ring, while it is granted.
  struct Hot {
    Memfd segment;
    RingReceiver ring;
    util::RecentRates rates;  ///< at which long payloads were taken
    uint32_t long_payloads = 0;

    void take_long(const RingEntry& entry, ShmLink& link, Sink& sink, const util::Clock& clock);
  };
  enum class Next : uint8_t {
    more,
    switched,
    broken,
    wait,   ///< its sender decides about the entry
    later,  ///< this side cannot take the entry now
  };
  /// What happens to entries.
  enum class Intake : uint8_t {
    open,
    ending,   ///< everything in the ring is delivered
    held,     ///< they stay in their ring
    stopped,  ///< for good
  };

  Next handle(const RingEntry& entry, Sink& sink);
  Next switch_ring() noexcept;
  Next on_write_entry(const RingEntry& entry, Sink& sink);
  void publish(RingReceiver& ring) noexcept;
  void wake_sender() noexcept;
  bool sender_dead() const noexcept;
  int share_bulk() noexcept;

  RingReceiver* x_current;
  Intake x_intake = Intake::open;
  bool x_silent = false;  ///< the sender will not decide about a retracted entry any more
  bool x_demoting = false;
  bool x_left = false;  ///< a drain() since the last clear left an entry that it could not take
  bool x_delivered = false;  ///< an entry was delivered
  LinkContext& x_context;
  ShmLink& x_link;
  uint64_t x_last_active = 0;
  uint32_t x_until_promotion = kPromoteAfter;  ///< entries through the cold ring
  uint32_t x_pause = kAskAgainAfter;
  RingReceiver x_cold;
  util::Ref<Connection> x_connection;
  std::unique_ptr<Hot> x_hot;
  std::unique_ptr<BulkOperations> x_bulk;  ///< from the first large transfer on
};

}  // namespace erdma::transport::shm
