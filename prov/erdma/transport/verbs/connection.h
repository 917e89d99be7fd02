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

/// One RC queue pair and the parts that use it: takes its completions and its packets to them. Made
/// on the connector's thread and touched by it until it is mailed; from then on by the polling
/// thread.
class Connection final : public util::ListHook<DirtyTag>, public LifecycleHost {
 public:
  static constexpr uint32_t kSendDepth = 64;

  Connection(Resources& shared, Worklist& worklist, LinkManager& manager, uint32_t number) noexcept;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  /// Destroys the queue pair. What completions would have released was released by end().
  ~Connection();

  // --- the connector's thread
  int prepare(ibv_qp_init_attr& attr) noexcept;
  /// Takes ownership of the queue pair, which is at least INIT, and posts receives.
  int adopt(ibv_qp* queue_pair) noexcept;
  /// Takes the peer's terms, and sends the first packet if we are the active side. -FI_ECONNRESET:
  /// the terms make no sense.
  int agree(const Terms& peer, bool active) noexcept;

  // --- the polling thread
  /// Packets may flow. `goes_first`: as Lifecycle has it.
  void go_up(VerbsLink& link, const Mail& mail, bool goes_first) noexcept;
  /// Throws std::bad_alloc: it has to come again.
  void on_completion(const ibv_wc& wc, Sink& sink);
  /// After completions or for anything else to do: posts receives again, sends what is due, moves
  /// transfers on.
  void progress() noexcept;
  void modify_to_error() noexcept;
  /// Destroys the queue pair, releases what was posted and reports transfers as failed.
  void end(Sink& sink, int status) noexcept;

  VerbsLink* link() const noexcept { return x_link; }
  /// The other side spoke first, or we did. Before, we must not send at all: on iWARP the passive
  /// side must stay silent until it heard something; it harms nowhere.
  bool confirmed() const noexcept { return x_heard || active; }
  bool may_send() const noexcept { return lifecycle.phase() == Phase::up && confirmed(); }

  // ConnectionHost, LifecycleHost
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
  std::vector<ibv_wc> early;  ///< completions from before go_up(): they are to come again
  PacketSender sender;
  PacketReceiver receiver;
  HeartbeatReads heartbeat;
  Transfers transfers;
  DirectAccess direct;
  PacketTransfers packet_transfers;
  Lifecycle lifecycle;

  // Of the transport: when and how it ends, what the watchdog saw.
  uint64_t connection_id = 0;  ///< the connector's
  uint64_t came_up = 0;        ///< sender.used as long as it has not carried any packet
  uint64_t phase_since = 0;    ///< when lifecycle.retiring() or agrees() began
  uint64_t close_deadline = 0;
  uint64_t completions = 0, seen_completions = 0, progress_at = 0;
  int close_status = 0;
  bool active = false;
  bool orderly = false;
  bool stranded = false;  ///< at the end of the endpoint: the queue pair outlives this

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
  CqShare x_share;
  QueuePair x_qp;  ///< last: destroyed before the memory that it writes to
};

}  // namespace erdma::transport::verbs
