#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/connection.h"
#include "transport/shm/in_bulk.h"
#include "transport/shm/memfd.h"
#include "transport/shm/region_gate.h"
#include "transport/shm/ring.h"
#include "transport/shm/wire.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"

namespace erdma::transport::shm {

class ShmLink;
struct LinkContext;

struct BulkInTag;  ///< has large transfers under way

/// What one peer sends here: its cold ring, sometimes a hot one, and bulk transfers that this side
/// drives. Polling thread only. Invariant: a peer uses one of its rings at a time; the switch is
/// the last entry of the one it leaves.
class InChannel final : public util::ListHook<BulkInTag> {
 public:
  InChannel(LinkContext& context, ShmLink& link, std::shared_ptr<Connection> connection) noexcept;

  bool hot() const noexcept { return x_current != &x_cold; }
  bool ready() const noexcept { return x_current->ready(); }
  /// Of what is ready: its sender says what becomes of it, and wakes us.
  bool parked() const noexcept { return x_current->parked(); }
  /// Delivers what has arrived, within bounds. Returns the number of entries.
  int drain(Sink& sink) noexcept;

  /// Delivers nothing more.
  void stop() noexcept { x_intake = Intake::stopped; }
  /// Leaves entries in their ring, or goes on; without effect once the channel ends.
  void hold(bool on) noexcept;
  /// Delivers everything that is in the ring, held or not. False: some of it waits for memory.
  bool deliver_rest(Sink& sink) noexcept;
  /// Nobody looks for it any more, and nothing that it shared is accessed.
  void end() noexcept;

  /// Gives the sender a hot ring. 0 or negative errno.
  int grant_hot() noexcept;
  /// `count` entries came through the cold ring. True = often enough that a hot one pays.
  bool sends_a_lot(int count) noexcept;
  /// There is no memory for one: ask again after a while, and after a longer one each time.
  void put_off_promotion() noexcept;
  void ask_to_demote() noexcept;
  bool granted() const noexcept { return bool(x_hot); }
  bool demoting() const noexcept { return x_demoting; }
  uint64_t last_active() const noexcept { return x_last_active; }
  /// Something came or is about to.
  bool in_use() const noexcept { return x_brought || ready() || (x_bulk && x_bulk->active()); }

  // As of InBulk.
  int read(const RemoteKey& remote, const iovec* local, size_t count, size_t length, uint64_t token,
           const RemoteWrite* write) noexcept;
  int access(CmaCall call, const SharedRegion& region, uint64_t offset, const iovec* local,
             size_t count, size_t length, uint64_t token) noexcept;
  /// What was shared with the peer.
  OwnerGate& owner_gate() noexcept { return x_owner_gate; }
  /// It may be inside an access to that.
  bool regions_in_use() noexcept { return x_owner_gate.inside() && !sender_dead(); }
  InBulk* bulk() const noexcept { return x_bulk.get(); }  ///< null: there was none yet
  /// The peer begins no access to local memory any more. False: one may be under way.
  bool quiesce() noexcept;
  /// Waits for that, a tenth of a second at most: only where the caller cannot come again.
  void await_quiet() noexcept;
  /// Ends the peer's writes to this target and nothing else; waits likewise.
  void end_writes(util::PoolHandle target, Sink& sink, int status) noexcept;
  /// The sender gave the channel up.
  bool sender_left() const noexcept;
  void wake_waiting_sender() noexcept;

  ShmLink& link() const noexcept { return x_link; }
  const std::shared_ptr<Connection>& connection() const noexcept { return x_connection; }

 private:
  static constexpr uint32_t kPromoteAfter = 16;
  static constexpr uint32_t kAskAgainAfter = 1024;  ///< when that had no effect
  static constexpr uint32_t kLongestPause = 1 << 24;

  /// A hot ring, while it is granted.
  struct Hot {
    Memfd segment;
    RingReceiver ring;
  };
  enum class Next : uint8_t { more, switched, broken, wait };
  /// What becomes of entries.
  enum class Intake : uint8_t {
    open,
    ending,   ///< all that is there is delivered
    held,     ///< they stay in their ring
    stopped,  ///< for good
  };

  Next handle(const RingEntry& entry, Sink& sink);
  Next switch_ring() noexcept;
  Next on_write_entry(const RingEntry& entry, Sink& sink);
  void publish(RingReceiver& ring) noexcept;
  bool sender_dead() const noexcept;
  int share_bulk() noexcept;

  RingReceiver* x_current;
  Intake x_intake = Intake::open;
  bool x_demoting = false;
  bool x_lacks_memory = false;  ///< a drain() since it was cleared left an entry for want of memory
  bool x_brought = false;       ///< an entry was delivered
  LinkContext& x_context;
  ShmLink& x_link;
  uint64_t x_last_active = 0;
  uint32_t x_until_promotion = kPromoteAfter;  ///< entries through the cold ring
  uint32_t x_pause = kAskAgainAfter;
  RingReceiver x_cold;
  std::shared_ptr<Connection> x_connection;
  OwnerGate x_owner_gate;
  std::unique_ptr<Hot> x_hot;
  std::unique_ptr<InBulk> x_bulk;  ///< from the first large transfer on
};

}  // namespace erdma::transport::shm
