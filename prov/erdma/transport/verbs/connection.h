#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/chain.h"
#include "transport/verbs/completion_queues.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/credits.h"
#include "transport/verbs/packet.h"
#include "transport/verbs/read_sinks.h"
#include "transport/verbs/receive_queue.h"
#include "transport/verbs/send_queue.h"
#include "transport/verbs/transfer.h"

namespace erdma::transport::verbs {

class Core;
class VerbsLink;
struct DirtyTag;

/// Control packets that wait for credits or room, in the order in which they leave.
enum Due : uint8_t {
  kDueGrow = 1,
  kDueRetireNo = 2,
  kDueRetire = 4,    ///< nothing follows, unless it is taken back
  kDueRetireOk = 8,  ///< likewise, by the peer
  kDueBye = 16,      ///< nothing follows
};

/// One RC queue pair with its receives, credits and what is under way on it. Made on the
/// connector's thread and touched by it until it is mailed; from then on by the polling thread.
class Connection final : public util::ListHook<DirtyTag> {
 public:
  static constexpr uint32_t kSendDepth = 64;
  static constexpr uint32_t kSmallReceives = 8;
  static constexpr uint32_t kSmallReceiveBytes = 1024;
  static constexpr uint32_t kLargeReceives = 56;
  static constexpr uint32_t kReceiveDepth = kSmallReceives + kLargeReceives;

  /// One end of it. Where there are more peers than connections, one end asks to give it up (to
  /// retire), and the other agrees; both then know all that the other sent. What they say of it
  /// when they connect anew is in Session.
  ///
  ///   making --> up --> asking --> asked --retire_ok--> closing, in agreement
  ///              ^         |         |
  ///              +---------+---------+  retire_no, a request of the peer's that goes before, or no
  ///              |                      answer in time: retire_back
  ///              up --> agreeing --> agreed --it ends--> closing, in agreement
  ///              ^         |           |
  ///              +---------+-----------+  retire_back
  ///              up --> parting --it ends--> closing
  ///   any --broken--> closing; if it was `asked`, a retire_ok that is found on the way still
  ///   counts
  enum class Phase : uint8_t {
    making,  ///< not yet mailed: completions are kept
    up,
    asking,    ///< retire waits for room
    asked,     ///< retire is sent
    agreeing,  ///< retire_ok waits for room
    agreed,    ///< retire_ok is sent
    parting,   ///< bye is sent
    closing,   ///< broken or given up: only completions are taken
  };

  Connection(Core& core, uint32_t id) noexcept : x_core(core), x_id(id) {}
  /// Destroys the queue pair. What completions would have released was released by end().
  ~Connection();

  // --- the connector's thread
  int prepare(ibv_qp_init_attr& attr) noexcept;
  void adopt(ibv_qp* queue_pair) noexcept;
  int post_receives() noexcept;
  /// Takes the peer's terms, and sends the first packet if we are the active side. -FI_ECONNRESET:
  /// the terms make no sense.
  int agree(const Terms& peer, bool active) noexcept;

  // --- the polling thread
  /// Packets may flow.
  void go_up(VerbsLink& link, const Mail& mail) noexcept;

  [[nodiscard]] int send(const Header& header, const iovec* payload, size_t count, size_t length,
                         SendHint hint) noexcept;
  size_t eager_limit() const noexcept {
    return (x_sent >= x_peer_large_from ? x_peer_large : x_peer_small) - kPacketOverhead;
  }
  void flush_chain() noexcept;

  void on_completion(const ibv_wc& wc, Sink& sink) noexcept;
  /// After completions or for anything else to do: posts receives again, sends what is due, moves
  /// transfers on.
  void settle() noexcept;
  void take_early(Sink& sink) noexcept;  ///< completions from before go_up()

  void begin(Transfer& transfer) noexcept;
  /// A short transfer at once, which is in this list then. -FI_EAGAIN: nothing happened.
  [[nodiscard]] int post_direct(Transfer& transfer) noexcept;
  /// As those of Link.
  [[nodiscard]] int read_short(DeviceAddress remote, void* local, size_t length,
                               uint64_t token) noexcept;
  [[nodiscard]] int write_short(DeviceAddress remote, const void* local, size_t length,
                                uint64_t token) noexcept;
  bool may_read_short() noexcept;  ///< there is memory for the answers
  void want_more() noexcept { x_flags |= kWantsMore; }
  void due(Due packets) noexcept;
  void post_heartbeat() noexcept;
  void give_up() noexcept;
  void modify_to_error() noexcept;
  /// Destroys the queue pair, releases what was posted and reports transfers as failed.
  void end(Sink& sink, int status) noexcept;
  /// Nothing more is delivered, and whatever both sides agreed on is void.
  void mute() noexcept {
    x_muted = true;
    in_agreement = false;
  }

  uint32_t id() const noexcept { return x_id; }
  ibv_qp* qp() const noexcept { return x_qp.get(); }
  VerbsLink* link() const noexcept { return x_link; }
  Phase phase() const noexcept { return x_phase; }
  bool may_send() const noexcept { return x_may_send; }
  bool grown() const noexcept { return x_receives.grown(); }
  const Credits& credits() const noexcept { return x_credits; }
  uint32_t outstanding() const noexcept { return x_send.outstanding() + x_receives.outstanding(); }
  uint32_t sends_outstanding() const noexcept { return x_send.outstanding(); }
  bool heartbeat_pending() const noexcept { return x_heartbeat_pending; }
  /// The device refused the last request for want of room, and none was posted since.
  bool refused_last() const noexcept {
    return x_refused && x_refused_after == x_send.latest() && x_send.outstanding() > 0;
  }
  /// Nothing of a transfer is under way in either direction.
  bool quiet() noexcept;
  bool may_retire() noexcept;
  /// Asks the peer to give it up.
  void retire() noexcept;
  /// The link goes on with this connection. False: not now, or the peer goes by the request
  /// already.
  bool take_back() noexcept;
  /// The peer did not answer: it is not asked again until something was heard of it.
  void unanswered() noexcept { x_unanswered_at = x_receives.taken(); }
  /// What can still be taken back is: a bye follows.
  void stay() noexcept;
  /// We agreed, and the peer does not end it. True: it has all that we sent, so that we may.
  bool proven() noexcept;
  /// The other side spoke first, or we did. Before, we must not send at all.
  bool met() const noexcept { return x_heard || active; }
  bool retiring() const noexcept { return x_phase == Phase::asking || x_phase == Phase::asked; }
  bool agrees() const noexcept { return x_phase == Phase::agreeing || x_phase == Phase::agreed; }
  uint64_t completions() const noexcept { return x_completions; }

  // Of Core: when and how it ends, what its timer saw.
  uint64_t connection_id = 0;  ///< the connector's
  uint64_t session = 0;        ///< what both ends call it
  uint64_t used = 0;           ///< poll in which it last carried a packet
  uint64_t came_up = 0;        ///< the same while it has not carried any
  bool active = false;
  bool fenced = false;  ///< a READ follows our last packet
  bool listed_closing = false, erred = false, orderly = false;
  bool in_agreement = false;  ///< closing: what waits for the peer goes on waiting
  bool in_doubt = false;      ///< likewise, but the peer may see it otherwise
  int close_status = 0;
  uint64_t phase_since = 0;  ///< when retiring() or agrees() began
  uint64_t close_deadline = 0;
  uint64_t seen_completions = 0, progress_at = 0;

 private:
  /// Of the send queue: left for packets of the protocol.
  static constexpr uint32_t kPlacesForStreams = 16;
  /// Of the send queue: only credits and heartbeats use them.
  static constexpr uint32_t kReservedPlaces = 2;
  static constexpr uint32_t kCreditsToTakeBack = 2;

  /// Bytes behind the body of a packet: a part of a list.
  struct Payload {
    const iovec* memory = nullptr;
    size_t count = 0;
    size_t offset = 0;
    size_t length = 0;
  };

  // connection.cc
  int emit(Kind kind, const void* body, size_t body_bytes, const Payload& payload,
           SendHint hint) noexcept;
  int emit_inline(Kind kind, const void* body, size_t body_bytes, const Payload& payload) noexcept;
  int emit_chained(Kind kind, const void* body, size_t body_bytes, const Payload& payload,
                   SendHint hint) noexcept;
  int emit_block(Kind kind, const void* body, size_t body_bytes, const Payload& payload) noexcept;
  size_t build(std::byte* to, Kind kind, const void* body, size_t body_bytes,
               const Payload& payload) noexcept;
  int post_packet(ibv_send_wr& request, uint16_t credits) noexcept;
  int post_ready() noexcept;
  int refused(int error) noexcept;
  int no_block(const BlockPool& pool) noexcept;
  void broken(int status, const char* why) noexcept;
  int emit_control(Kind kind, const void* body, size_t bytes) noexcept {
    return emit(kind, body, bytes, {}, SendHint::none);
  }

  // connection_retire.cc
  void on_retirement(Kind kind, const std::byte* body, size_t length) noexcept;
  void on_retire(uint32_t request) noexcept;
  void on_retire_back(uint32_t request) noexcept;
  void on_answer_to_retire(uint32_t request, bool agreed) noexcept;
  void sent_last(Due which) noexcept;
  void go_on() noexcept;
  void enter(Phase phase) noexcept;

  // connection_receive.cc
  void mark_dirty() noexcept;
  /// Something waits for credits or for places in the send queue.
  bool wants_room() noexcept {
    return x_due || x_credits.must_return() || !x_moving.empty() || !x_streams.empty() ||
           !x_answers.empty();
  }
  void on_receive(const ibv_wc& wc, Sink& sink) noexcept;
  void on_sent(const ibv_wc& wc, Sink& sink) noexcept;
  void on_failed(const ibv_wc& wc, Sink& sink) noexcept;
  void on_control(const Prefix& prefix, const std::byte* body, size_t length, Sink& sink) noexcept;
  void on_grow(const std::byte* body, size_t length) noexcept;
  void first_packet() noexcept;
  void repost() noexcept;
  void flush_due() noexcept;
  int send_due(Due which) noexcept;
  int emit_request(Kind kind, uint32_t request) noexcept;
  void try_grow() noexcept;

  // bulk.cc
  void move_transfers() noexcept;
  bool post_piece(Transfer& transfer) noexcept;
  bool aim(Transfer& transfer, ibv_sge& local, ibv_send_wr& request, Work& work) noexcept;
  void on_piece(const Work& work, bool success, Sink& sink) noexcept;
  void on_work(const Work& work, bool success, Sink& sink) noexcept;
  void end_transfer(Transfer& transfer, int status, Sink& sink) noexcept;
  void settle_transfer(Transfer& transfer) noexcept;

  // direct.cc
  bool acquire_short(const Transfer& transfer, BlockPool::Block& block) noexcept;
  void release_short(const Transfer& transfer, const BlockPool::Block& block) noexcept;
  int post_short(Transfer& transfer) noexcept;
  int post_flush(Transfer& transfer) noexcept;
  void on_direct(const Work& work, bool success, Sink& sink) noexcept;
  void on_flush(const Work& work, bool success, Sink& sink) noexcept;

  // short.cc
  int submit(ibv_send_wr& request) noexcept;
  void on_short(const Work& work, bool success, Sink& sink) noexcept;
  void keep_failed(uint64_t token, Sink& sink) noexcept;

  // staged.cc
  bool request_staged(Transfer& transfer) noexcept;
  void count_copied(size_t bytes) noexcept;
  bool push_staged(Transfer& transfer) noexcept;
  bool move_streams() noexcept;
  bool flush_answers() noexcept;
  void answer(util::PoolHandle requester, int status) noexcept;
  void on_pull(const StagedBody& body) noexcept;
  void on_data(const StagedBody& body, const std::byte* bytes, size_t length, Sink& sink) noexcept;
  void on_push(const StagedBody& body, const std::byte* bytes, size_t length) noexcept;
  void on_answer(const StagedBody& body, Sink& sink) noexcept;
  void on_staged(Kind kind, const std::byte* body, size_t length, Sink& sink) noexcept;
  Transfer* staged_transfer(const StagedBody& body) noexcept;
  void drop_staged() noexcept;

  // What send() and receiving touch.
  Core& x_core;
  VerbsLink* x_link = nullptr;
  Credits x_credits;
  uint32_t x_inline = 0;
  uint32_t x_peer_small = kMinReceiveBytes;
  uint32_t x_peer_large = kMinReceiveBytes;
  uint64_t x_sent = 0;                      ///< packets: number of the next one
  uint64_t x_peer_large_from = UINT64_MAX;  ///< number of the first that may be large
  Phase x_phase = Phase::making;
  bool x_may_send = false;
  bool x_muted = false;  ///< fail(): nothing is delivered any more
  bool x_chained = false;
  uint8_t x_flags = 0;
  uint8_t x_due = 0;
  bool x_was_asked = false;  ///< closing: the phase before
  bool x_heartbeat_pending = false;
  bool x_heard = false;
  SendQueue x_send;
  ReceiveQueue x_receives;
  ReadSinks x_sinks;
  uint64_t x_completions = 0;
  bool x_refused = false;
  uint32_t x_refused_after = 0;           ///< number of the send before it
  uint32_t x_request = 0;                 ///< number of our next or current request to retire
  uint32_t x_peers_request = 0;           ///< that we agree to
  uint32_t x_last_packet = 0;             ///< of the send queue: retire_ok
  uint64_t x_unanswered_at = UINT64_MAX;  ///< packets that had come when a request was taken back

  util::IntrusiveList<Transfer> x_moving, x_waiting;
  util::IntrusiveList<Stream> x_streams;
  util::IntrusiveList<Answer> x_answers;
  unsigned x_pieces = 0;       ///< of transfers, in flight
  uint64_t x_piece_bytes = 0;  ///< of those
  unsigned x_reads = 0;
  unsigned x_shorts = 0;  ///< reads and writes of the short way, in flight
  unsigned x_answers_queued = 0;
  uint64_t x_heartbeat_address = 0;
  uint32_t x_heartbeat_rkey = 0;
  std::vector<ibv_wc> x_early;

  const uint32_t x_id;
  CqShare x_share;
  QueuePair x_qp;  ///< last: destroyed before the memory that it writes to
};

}  // namespace erdma::transport::verbs
