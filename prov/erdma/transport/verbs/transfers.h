#pragma once

#include "transport/verbs/heartbeat.h"
#include "transport/verbs/packet_sender.h"
#include "transport/verbs/resources.h"
#include "transport/verbs/send_queue.h"
#include "transport/verbs/transfer.h"

namespace erdma::transport::verbs {

/// get() and put() of one connection by RDMA: split into pieces, a few in flight, transfers in
/// turn. So packets never wait for more than what is in flight. Owns the list of all transfers,
/// including those that move by other means (DirectAccess, PacketTransfers).
class Transfers {
 public:
  Transfers(Resources& shared, PacketSender& sender, HeartbeatReads& heartbeat,
            ConnectionHost& host) noexcept
      : x_shared(shared),
        x_counters(&shared.counters),
        x_sender(sender),
        x_heartbeat(heartbeat),
        x_host(host),
        x_reads_left(shared.reads_in_flight) {}
  /// `peer` owns the blocks that are the sinks of READs.
  void start(const void* peer, Counters& counters) noexcept {
    x_peer = peer;
    x_counters = &counters;
  }

  /// Registers the local memory, or lets the transfer bounce; poll() posts it. False: nothing
  /// happened, because the memory of a GPU cannot be registered now.
  [[nodiscard]] bool begin(Transfer& transfer, const iovec* local, size_t count) noexcept;
  /// The transfer has nothing left to post.
  void wait(Transfer& transfer) noexcept;
  /// The transfer whose turn it is; null: none has anything left to post.
  Transfer* next() noexcept { return x_moving.front(); }
  /// Ends its turn: moves it behind the others, or to those that only wait.
  void pass(Transfer& transfer) noexcept;
  /// Posts the next piece, or the READ behind all pieces. False: no room, or it could not be
  /// posted.
  bool post_piece(Transfer& transfer) noexcept;
  /// Posts a READ behind the WRITEs of a transfer. RC keeps their order, so its response proves
  /// that they are placed. -FI_EAGAIN: nothing happened.
  int post_proof(Transfer& transfer) noexcept;
  void on_piece(const Work& work, bool success, Sink& sink) noexcept;
  void on_proof(const Work& work, bool success, Sink& sink) noexcept;
  void end(Transfer& transfer, int status, Sink& sink) noexcept;
  void end_all(int status, Sink& sink) noexcept;

  /// The transfer that a peer names; null if it does not belong to this connection.
  Transfer* find(util::PoolHandle handle) noexcept;
  bool any_moving() const noexcept { return !x_moving.empty(); }
  bool empty() const noexcept { return x_moving.empty() && x_waiting.empty(); }

  bool may_read() const noexcept { return x_reads_left > 0; }
  void read_begins() noexcept { --x_reads_left; }
  void read_ends() noexcept { ++x_reads_left; }

 private:
  [[gnu::cold, gnu::noinline]] bool bounce(Transfer& transfer, int rc) noexcept;
  bool aim(Transfer& transfer, ibv_sge& local, ibv_send_wr& request, Work& work) noexcept;

  Resources& x_shared;
  Counters* x_counters;  ///< those of x_shared until the peer is known
  PacketSender& x_sender;
  HeartbeatReads& x_heartbeat;
  ConnectionHost& x_host;
  const void* x_peer = nullptr;
  util::IntrusiveList<Transfer> x_moving, x_waiting;
  unsigned x_reads_left;       ///< READs that may still be posted
  unsigned x_pieces = 0;       ///< pieces in flight
  uint64_t x_piece_bytes = 0;  ///< bytes of the pieces in flight
};

}  // namespace erdma::transport::verbs
