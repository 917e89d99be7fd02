#pragma once

#include <cstdint>
#include <vector>

#include "transport/verbs/completion_queues.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/direct_access.h"
#include "transport/verbs/heartbeat.h"
#include "transport/verbs/lifecycle.h"
#include "transport/verbs/packet_receiver.h"
#include "transport/verbs/packet_sender.h"
#include "transport/verbs/packet_transfers.h"
#include "transport/verbs/transfers.h"

namespace erdma::transport::verbs {

class LinkManager;
class VerbsLink;
class Worklist;
struct DirtyTag;

/// One RC queue pair and the parts that use it; hands completions and packets to those parts. The
/// connector's thread makes it and uses it until it mails it to the polling thread, which uses it
/// from then on.
class Connection final : public util::ListHook<DirtyTag>, public LifecycleHost {
 public:
  static constexpr uint32_t kSendDepth = 64;

  Connection(Resources& shared, Worklist& worklist, LinkManager& manager, uint32_t number) noexcept;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  /// Destroys the queue pair. end() has released what completions would have released.
  ~Connection();

  // --- Connector's thread.
  int prepare(ibv_qp_init_attr& attr) noexcept;
  /// Takes ownership of the queue pair, which is at least in INIT, and posts receives.
  int adopt(ibv_qp* queue_pair) noexcept;
  /// Takes the peer's terms. On the active side, also sends the first packet. -FI_ECONNRESET: the
  /// terms are invalid.
  int agree(const Terms& peer, bool active) noexcept;

  // --- Polling thread.
  /// Packets may flow. `goes_first`: see Lifecycle.
  void go_up(VerbsLink& link, const Mail& mail, bool goes_first) noexcept;
  /// Throws std::bad_alloc; the caller then calls it again.
  void on_completion(const ibv_wc& wc, Sink& sink);
  /// Call after completions or when there is other work: reposts receives, sends due packets,
  /// advances transfers.
  void progress() noexcept;
  void modify_to_error() noexcept;
  /// Destroys the queue pair, releases what was posted and reports transfers as failed.
  void end(Sink& sink, int status) noexcept;

  VerbsLink* link() const noexcept { return x_link; }
  /// True once the other side has sent something, or if this side is active. Before that this side
  /// must not send: on iWARP the passive side must stay silent until it has received something, and
  /// on other devices that does no harm.
  bool confirmed() const noexcept { return x_heard || active; }
  bool may_send() const noexcept { return lifecycle.phase() == Phase::up && confirmed(); }

  // Implementation of ConnectionHost and LifecycleHost.
  void broken(int status, const char* why) noexcept override;
  void progress_soon() noexcept override;
  void await_block() noexcept override;
  void phase_changed(Phase before) noexcept override;
  bool quiet() noexcept override {
    return transfers.empty() && packet_transfers.empty() && direct.idle();
  }
  void on_answer(bool agreed) noexcept override;
  bool reopen() noexcept override;

  const uint32_t id;          ///< in ConnectionTable
  std::vector<ibv_wc> early;  ///< completions from before go_up(), to be handled again
  PacketSender sender;
  PacketReceiver receiver;
  HeartbeatReads heartbeat;
  Transfers transfers;
  DirectAccess direct;
  PacketTransfers packet_transfers;
  Lifecycle lifecycle;
  CqShare share;  ///< of its completion queue

  // For the transport: when and how the connection ends, and what the watchdog saw.
  uint64_t connection_id = 0;  ///< the connector's id
  uint64_t came_up = 0;  ///< value of sender.used as long as the connection has carried no packet
  uint64_t phase_since = 0;  ///< when lifecycle.retiring() or agrees() began
  uint64_t close_deadline = 0;
  uint64_t completions = 0, seen_completions = 0, progress_at = 0;
  uint64_t stuck_since = 0;  ///< since when the watchdog awaits a sign of life; 0 = it does not
  int close_status = 0;
  bool active = false;
  bool orderly = false;
  bool leave_open = false;  ///< at the end of the endpoint: the queue pair outlives this object

 private:
  void on_receive(const ibv_wc& wc, Sink& sink);
  void on_sent(const ibv_wc& wc, Sink& sink) noexcept;
  void on_failed(const ibv_wc& wc, Sink& sink) noexcept;
  void on_work(const Work& work, bool success, Sink& sink) noexcept;
  void on_control(const PacketReceiver::Packet& packet, Sink& sink) noexcept;
  void send_due_controls() noexcept;
  void move_transfers() noexcept;

  Resources& x_shared;
  Worklist& x_worklist;
  LinkManager& x_manager;
  VerbsLink* x_link = nullptr;
  bool x_heard = false;
  QueuePair x_qp;  ///< last: destroyed before the memory that it writes to
};

}  // namespace erdma::transport::verbs
