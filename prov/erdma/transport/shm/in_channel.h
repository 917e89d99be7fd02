#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/bulk.h"
#include "transport/shm/connection.h"
#include "transport/shm/ring.h"
#include "transport/shm/segment.h"
#include "transport/transport.h"
#include "util/pool.h"

namespace erdma::transport::shm {

class Core;
class ShmLink;

/// A read that serves the peer's write().
struct RemoteWrite {
  util::PoolHandle write;   ///< at the peer
  util::PoolHandle target;  ///< here
};

/// What one peer sends here: its cold ring, sometimes a hot one, and bulk transfers that this side
/// drives. Polling thread only. Invariant: a peer uses one of its rings at a time; the switch is
/// the last entry of the one it leaves.
class InChannel final : private BulkMemory, private Sink {
 public:
  InChannel(Core& core, ShmLink& link, std::shared_ptr<Connection> connection) noexcept;
  ~InChannel() = default;

  bool hot() const noexcept { return x_current != &x_cold; }
  bool ready() const noexcept { return x_current->ready(); }
  /// Of what is ready: its sender says what becomes of it, and wakes us.
  bool parked() const noexcept { return x_current->parked(); }
  /// Delivers what has arrived, within bounds. Returns the number of entries.
  int drain(Sink& sink) noexcept;

  /// Delivers nothing more.
  void stop() noexcept { x_stopped = x_ending = true; }
  /// Leaves entries in their ring, or goes on; without effect once the channel ends.
  void hold(bool on) noexcept;
  /// Everything that is in the ring is delivered, held or not.
  void begin_to_end() noexcept;

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
  bool brought_anything() const noexcept { return x_brought; }

  /// Copies from the peer's exposure; on_done(token), or for a remote write the reply `write`.
  int read(const Exposure& remote, const iovec* local, size_t count, size_t length, uint64_t token,
           const RemoteWrite* write) noexcept;
  /// Accesses what the peer lent; on_done(token).
  int access(CmaCall call, const LentMemory& lent, uint64_t offset, const iovec* local,
             size_t count, size_t length, uint64_t token) noexcept;
  /// What was lent to the peer.
  Lending& lending() noexcept { return x_lending; }
  /// It may be inside an access to that.
  bool lent_in_use() noexcept { return x_lending.inside() && !sender_dead(); }
  int poll_bulk(Sink& sink) noexcept;
  bool bulk_active() const noexcept { return x_bulk && x_bulk->transfers.active(); }
  bool bulk_ready() const noexcept { return x_bulk && x_bulk->transfers.ready(); }
  /// The peer begins no access to local memory any more. False: one may be under way.
  bool settle_bulk() noexcept;
  /// Waits for that, a tenth of a second at most: only where the caller cannot come again.
  void await_settled() noexcept;
  void abort_bulk(Sink& sink, int status) noexcept;  ///< once settled
  bool has_bounce() const noexcept { return x_has_bounce; }
  bool sender_left() const noexcept override;

  ShmLink& link() const noexcept { return x_link; }
  const std::shared_ptr<Connection>& connection() const noexcept { return x_connection; }

 private:
  static constexpr uint32_t kPromoteAfter = 16;
  static constexpr uint32_t kAskAgainAfter = 1024;  ///< when that had no effect
  static constexpr uint32_t kLongestPause = 1 << 24;

  /// One read under way.
  struct Moving {
    uint64_t token;
    RemoteWrite write;
    bool replies;
  };
  /// A hot ring, while it is granted.
  struct Hot {
    Segment segment;
    RingReceiver ring;
  };
  /// From the first read on.
  struct Bulk {
    Bulk(Segment&& memory, InChannel& channel);
    Segment segment;
    BulkIn transfers;  ///< after the segment: destroyed first
    util::Pool<Moving, 8> moving;
    Sink* sink = nullptr;  ///< while they are polled
  };
  enum class Next : uint8_t { more, switched, broken, wait };

  int back_bounce() noexcept override;
  bool bounce_affordable() const noexcept override;
  bool enter() noexcept override;
  void leave() noexcept override;
  void ask_for_help() noexcept override;
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t token, int status) noexcept override;
  void on_link_down(Link&, int) noexcept override {}

  Next handle(const RingEntry& entry, Sink& sink) noexcept;
  Next switch_ring() noexcept;
  void publish(RingReceiver& ring) noexcept;
  bool sender_dead() const noexcept;
  int share_bulk_memory() noexcept;
  void wake_waiting_sender() noexcept;

  RingReceiver* x_current;
  bool x_stopped = false;  ///< nothing is taken from a ring: on hold, or for good
  bool x_ending = false;
  bool x_demoting = false;
  bool x_brought = false;  ///< an entry was delivered
  bool x_has_bounce = false;
  Core& x_core;
  ShmLink& x_link;
  uint64_t x_last_active = 0;
  uint32_t x_until_promotion = kPromoteAfter;  ///< entries through the cold ring
  uint32_t x_pause = kAskAgainAfter;
  RingReceiver x_cold;
  std::shared_ptr<Connection> x_connection;
  Lending x_lending;
  std::unique_ptr<Hot> x_hot;
  std::unique_ptr<Bulk> x_bulk;
};

}  // namespace erdma::transport::shm
