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

  bool hot() const noexcept { return x_current == &x_hot; }
  bool ready() const noexcept { return x_current->ready(); }
  /// Delivers what has arrived, within bounds. Returns the number of entries.
  int drain(Sink& sink) noexcept;

  /// Delivers nothing more.
  void stop() noexcept { x_stopped = true; }

  /// Gives the sender a hot ring. 0 or negative errno.
  int grant_hot() noexcept;
  void ask_to_demote() noexcept;
  bool granted() const noexcept { return bool(x_hot_segment); }
  bool demoting() const noexcept { return x_demoting; }
  uint64_t last_active() const noexcept { return x_last_active; }

  /// Copies from the peer's exposure; on_done(token), or for a remote write the reply `write`.
  int read(const Exposure& remote, const iovec* local, size_t count, size_t length, uint64_t token,
           const RemoteWrite* write) noexcept;
  int poll_bulk(Sink& sink) noexcept;
  bool bulk_active() const noexcept { return x_bulk && x_bulk->active(); }
  bool bulk_ready() const noexcept { return x_bulk && x_bulk->ready(); }
  void abort_bulk(Sink& sink, int status) noexcept;

  ShmLink& link() const noexcept { return x_link; }
  const std::shared_ptr<Connection>& connection() const noexcept { return x_connection; }

 private:
  /// One read under way.
  struct Moving {
    uint64_t token;
    RemoteWrite write;
    bool replies;
  };
  enum class Next : uint8_t { more, switched, broken };

  int back_bounce() noexcept override;
  bool sender_left() const noexcept override;
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t token, int status) noexcept override;
  void on_link_down(Link&, int) noexcept override {}

  Next handle(const RingEntry& entry, Sink& sink) noexcept;
  Next switch_ring() noexcept;
  void publish(RingReceiver& ring) noexcept;
  int share_bulk_memory() noexcept;
  void wake_waiting_sender() noexcept;

  RingReceiver* x_current;
  bool x_stopped = false;
  Core& x_core;
  ShmLink& x_link;
  uint64_t x_last_active = 0;
  RingReceiver x_hot;
  RingReceiver x_cold;
  std::shared_ptr<Connection> x_connection;
  Segment x_hot_segment;
  bool x_demoting = false;
  Sink* x_sink = nullptr;  ///< while bulk transfers are polled
  util::Pool<Moving> x_moving;
  Segment x_bulk_segment;
  std::unique_ptr<BulkIn> x_bulk;  ///< after the segment: destroyed first
};

}  // namespace erdma::transport::shm
