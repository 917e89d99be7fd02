#pragma once

#include "protocol/controls.h"
#include "protocol/receive_queues.h"

namespace erdma::protocol {

class Deliveries;

/// A message that has matched a receive, and of which more is to come or to be sent: its bytes, by
/// a rendezvous or in fragments, or the fin.
struct Delivery final : Pending {
  enum class State : uint8_t {
    starting,  ///< the link had no room for get() or share(); progress() tries again
    reading,   ///< the link has accepted get()
    granted,   ///< the cts is sent; the delivery waits for done
    flushing,  ///< all bytes are here; Link::flush() makes them visible
    arriving,  ///< packets bring the bytes
    answered,  ///< over; completes when the link has taken the fin, or earlier answers
  };

  int start() noexcept override;
  void finish(int status) noexcept override;

  Deliveries* owner = nullptr;
  Peer* peer = nullptr;
  transport::Link* link = nullptr;  ///< the message came on it; null: it is down while flushing
  Receive* multi = nullptr;         ///< the multi-receive buffer that takes the message, or null
  Buffers buffers;                  ///< destination, at most as long as the message
  size_t message_length = 0;
  uint64_t tag = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t completion_flags = 0;
  wire::RequestId sender{};
  transport::RemoteKey remote;     ///< the sender's memory; size 0: the sender writes
  transport::RemoteKey local;      ///< the memory here that is shared with the sender
  CompletionSink* sink = nullptr;  ///< where the receive completes
  Arrival* arrival = nullptr;      ///< arriving: the message
  State state = State::starting;
  int outcome = 0;           ///< answered: how it ended
  UnsentAnswers::Mark mark;  ///< answered: the answers that leave before it is reported
  bool report = false;
  bool wants_fin = false;  ///< the sender waits for the fin in any case
  bool device = false;     ///< part of `buffers` is device memory
  bool discards = false;   ///< the application discards the message: no bytes are placed
};

/// Brings the bytes of matched messages whose bytes do not come with the first packet.
class Deliveries {
 public:
  Deliveries(Peers& peers, Controls& controls, ReceiveQueues& queues,
             CompletionSink& received) noexcept
      : x_peers(peers), x_controls(controls), x_queues(queues), x_received(received) {}

  /// `receive` has left its queue, or is a multi-receive buffer.
  void begin(Receive& receive, Peer& peer, transport::Link& link, const wire::MessageHeader& header,
             const transport::RemoteKey& remote_key) noexcept;
  /// Begins the delivery of a message whose fragments are arriving. `arrival.delivery` stays null
  /// if memory lacks; the receive fails then.
  void begin(Receive& receive, Arrival& arrival) noexcept;
  /// Begins the delivery of a message all of whose bytes are here. Null: memory lacks, and the
  /// receive has failed.
  Delivery* begin_whole(Receive& receive, Peer& peer, transport::Link& link,
                        const wire::MessageHeader& header) noexcept;
  /// The application discards an unexpected message. Reports that by `found`, once the rest of the
  /// message is here and the link has taken its fin. The caller releases the message.
  void discard(Unexpected& message, const Completion& found) noexcept;
  /// Handles a done packet: the sender's put() into memory here is over.
  void on_peer_done(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                    size_t length) noexcept;
  bool any() const noexcept { return x_deliveries.in_use() > 0; }
  /// Returns whether there is memory for one more.
  bool has_memory() noexcept { return x_deliveries.reserve(); }
  /// Reports what waited for answers that have left now.
  void report_rest(Peer& peer) noexcept;
  /// Reports all that waits for answers to leave: the endpoint closes.
  void report_all(Peer& peer) noexcept;
  /// A get() or flush() of the link has ended.
  void on_moved(util::PoolHandle handle, int status) noexcept;

  /// Ends the deliveries over a link that is down. Returns true if there were any.
  bool fail(Peer& peer, const transport::Link* link, int status) noexcept;
  /// The link over which this side sends has ended, perhaps with the permission to write in it.
  /// Fails the other links over which the peer would write.
  static void fail_granted(Peer& peer, const transport::Link& ended, int status) noexcept;
  /// Revokes the memory that is shared with the peer, before the endpoint closes.
  static void revoke_memory(Peer& peer) noexcept;
  /// Fails the peer's deliveries into a shared receive context, which outlives this engine: the
  /// user of the context waits for a completion of each. The links are gone.
  void cancel_all(Peer& peer, CompletionSink& sink) noexcept;

  // For Delivery.
  int start(Delivery& delivery) noexcept;
  void finish(Delivery& delivery, int status) noexcept;

 private:
  void fill_in(Delivery& delivery, Receive& receive) noexcept;
  int let_write(Delivery& delivery) noexcept;
  Delivery* make(Peer& peer, transport::Link& link, const wire::MessageHeader& header) noexcept;
  Delivery* make(Receive& receive, Peer& peer, transport::Link& link,
                 const wire::MessageHeader& header) noexcept;
  void flush_or_finish(Delivery& delivery, int status) noexcept;
  void report(Delivery& delivery) noexcept;
  void complete(Delivery& delivery) noexcept;
  static bool fail(PendingList<Delivery>& list, const transport::Link* link, int status) noexcept;
  void cancel_all(PendingList<Delivery>& deliveries, CompletionSink& sink) noexcept;

  Peers& x_peers;
  Controls& x_controls;
  ReceiveQueues& x_queues;
  CompletionSink& x_received;
  util::Pool<Delivery> x_deliveries;
};

}  // namespace erdma::protocol
