#pragma once

#include "protocol/controls.h"
#include "protocol/receive_queues.h"

namespace erdma::protocol {

class Deliveries;

/// A matched rendezvous message while its bytes move.
struct Delivery final : Pending {
  enum class State : uint8_t {
    starting,  ///< link had no room for get() or share(): retried by progress()
    reading,   ///< get() accepted
    granted,   ///< cts sent, waits for done
    flushing,  ///< all bytes are moved, the link makes them visible
  };

  int start() noexcept override;
  void finish(int status) noexcept override;

  Deliveries* owner = nullptr;
  Peer* peer = nullptr;
  transport::Link* link = nullptr;  ///< on which the rts came; null: flushing, its sender is gone
  Receive* multi = nullptr;         ///< the multi-receive buffer it belongs to
  Buffers buffers;                  ///< what to fill: no longer than the message
  size_t message_length = 0;
  uint64_t tag = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t completion_flags = 0;
  wire::RequestId sender{};
  transport::RemoteKey remote;     ///< the sender's memory; size 0 = it writes
  transport::RemoteKey local;      ///< our memory, granted
  CompletionSink* sink = nullptr;  ///< where it completes
  State state = State::starting;
  bool report = false;
  bool device = false;  ///< some of `buffers` is not host memory
};

/// The receiver's side of rendezvous: moves the bytes of messages that have found their receive.
class Deliveries {
 public:
  Deliveries(Peers& peers, Controls& controls, ReceiveQueues& queues,
             CompletionSink& received) noexcept
      : x_peers(peers), x_controls(controls), x_queues(queues), x_received(received) {}

  /// The receive is in no queue any more, or a multi-receive buffer.
  void begin(Receive& receive, Peer& peer, transport::Link& link, const wire::MessageHeader& header,
             const transport::RemoteKey& remote_key) noexcept;
  /// A packet: the sender's put() into our memory is over.
  void on_peer_done(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                    size_t length) noexcept;
  /// The link has moved the bytes, or not.
  void on_moved(util::PoolHandle handle, int status) noexcept;

  /// The link is down. True if it was needed.
  bool fail(Peer& peer, const transport::Link* link, int status) noexcept;
  /// No peer writes to the caller's memory any more.
  static void revoke_memory(Peer& peer) noexcept;
  /// The messages will not be whole: the shared context outlives us, and its user waits for them.
  void orphan(Peer& peer) noexcept;

  // For Delivery.
  int start(Delivery& delivery) noexcept;
  void finish(Delivery& delivery, int status) noexcept;

 private:
  void fill_in(Delivery& delivery, Receive& receive, const wire::MessageHeader& header) noexcept;
  int let_write(Delivery& delivery) noexcept;
  void flush_or_finish(Delivery& delivery, int status) noexcept;
  static bool fail(PendingList<Delivery>& list, const transport::Link* link, int status) noexcept;
  void orphan(PendingList<Delivery>& deliveries) noexcept;

  Peers& x_peers;
  Controls& x_controls;
  ReceiveQueues& x_queues;
  CompletionSink& x_received;
  util::Pool<Delivery> x_deliveries;
};

}  // namespace erdma::protocol
