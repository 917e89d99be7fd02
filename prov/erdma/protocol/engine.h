#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/arguments.h"
#include "protocol/completion.h"
#include "protocol/controls.h"
#include "protocol/inbound.h"
#include "protocol/match.h"
#include "protocol/one_sided.h"
#include "protocol/peers.h"
#include "protocol/receive_queues.h"
#include "protocol/request.h"
#include "protocol/shared_receives.h"
#include "transport/transport.h"
#include "util/clock.h"

namespace erdma::hmem {
class DeviceMemory;
}

namespace erdma::protocol {

/// The messages of one endpoint: turns operations into packets and packets into completions.
/// Single-threaded: the caller holds the domain lock. Owns every request and peer; the transports
/// outlive it. Methods are spread over engine, send, receive, arrival, eager, rendezvous,
/// one_sided_initiator, one_sided_target, one_sided_atomic, one_sided_direct, one_sided_short and
/// failure.cc.
class Engine final : public transport::Sink, PeerLoss {
 public:
  Engine(const EngineConfig& config, AddressBook& book, Router& router,
         std::vector<transport::Transport*> transports, CompletionSink& sent,
         CompletionSink& received, SharedReceives* shared = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// 0 = exactly one completion follows (none on success if !report); -FI_EAGAIN = try again after
  /// progress(); else nothing was begun.
  [[nodiscard]] int post_send(const SendArgs& args) noexcept;
  [[nodiscard]] int post_receive(const ReceiveArgs& args) noexcept;
  /// Completes once the target has executed it, or its device. Needs enable_one_sided(). Reads from
  /// oneself never are -FI_EAGAIN: clients use them to flush, and some do not try again.
  [[nodiscard]] int post_one_sided(const OneSidedArgs& args) noexcept {
    return post_one_sided(args, nullptr);
  }
  /// The short way of post_one_sided(). False: nothing happened, it is to take the long one.
  [[nodiscard]] bool post_access(const AccessArgs& args) noexcept;
  /// The same, completing at `sink` whatever `report` says. The sink outlives the operation, or the
  /// engine. Never multi-receive.
  [[nodiscard]] int post_send(const SendArgs& args, CompletionSink& sink) noexcept;
  [[nodiscard]] int post_receive(const ReceiveArgs& args, CompletionSink& sink) noexcept;
  [[nodiscard]] int post_one_sided(const OneSidedArgs& args, CompletionSink& sink) noexcept {
    return post_one_sided(args, &sink);
  }
  [[nodiscard]] int probe(const ReceiveArgs& args, Probe kind) noexcept;
  /// Withdraws the oldest receive, or send not yet on the wire, with this context: completes with
  /// FI_ECANCELED. -FI_ENOENT if there is none.
  int cancel(const void* context) noexcept;

  /// Returns the number of steps forward.
  int progress() noexcept;
  /// True while something taken from the caller is not yet handed to a link and its caller will
  /// never hear of it: injected messages, fins.
  bool owes() noexcept;
  /// True while the next operation for some peer waits for its link to take the one packet that it
  /// is: a connection that is being made, mostly.
  bool has_packets() noexcept;

  /// Before it peers' one-sided operations are refused. `setup` outlives the engine.
  void enable_one_sided(const OneSidedSetup& setup) noexcept;
  /// Ends the connections of peers whose operations on the region are under way.
  void abandon(const Region& region) noexcept;
  /// Takes back what peers may access directly: of one region, or of all.
  /// Each is a user of its region until its peer has answered.
  void revoke(uint64_t key) noexcept;
  void revoke_all() noexcept;
  /// Waits for those answers no longer, nor for the next of the same peers. Those who said that
  /// they are busy are waited for unless `all`.
  void stop_waiting(uint64_t key, bool all) noexcept;

  /// The endpoint closes: no peer touches the caller's memory any more.
  void withdraw_all() noexcept;
  /// Nobody may call progress() for a while: what waits for a peer that does not look, and can be
  /// done without it, is done. Returns how many operations were.
  int spare_targets() noexcept;
  /// After that: what it had to do with the shared receive context ends.
  void leave_shared() noexcept;

  Peers& peers() noexcept { return x_peers; }
  void set_min_multi_recv(size_t bytes) noexcept { x_own.min_multi_recv = bytes; }

  // For ReceiveQueues, about messages that came to this engine.
  /// Gives an unexpected message to a receive. True if the receive is still there and wants
  /// another.
  bool accept(Receive& receive, Unexpected& message) noexcept;
  void discard(Unexpected& message) noexcept;
  CompletionSink& received() noexcept { return x_received; }

 private:
  // engine.cc
  void on_done(uint64_t token, int status) noexcept override;
  void on_link_down(transport::Link& link, int status) noexcept override;
  bool waits_for(const transport::Link& link) noexcept override;
  bool wants_previews() const noexcept override {
    return x_own.tagged.deep() || x_own.untagged.deep();
  }
  void on_preview(transport::Link& link, const std::byte* header) noexcept override;
  int work_off(Peer& peer) noexcept;
  Matcher& matcher(bool tagged) noexcept { return x_queues->matcher(tagged); }

  // send.cc
  bool goes_direct(const SendArgs& args, const Peer& peer) noexcept;
  bool send_direct(const SendArgs& args, Peer& peer) noexcept;
  int post_send_slow(SendArgs args, Peer& peer) noexcept;
  bool sends_full() const noexcept {
    return x_sends.in_use() + x_accesses.in_use() >= x_config.send_limit;
  }
  Send* make_send(const SendArgs& args, Peer& peer) noexcept;
  int begin(Send& send) noexcept;
  CompletionSink& sink_of(const Send& send) noexcept;
  int launch(Send& send) noexcept;
  bool flush_sends(Peer& peer) noexcept;
  void withdraw(Send& send) noexcept;
  void finish_send(Send& send, int status) noexcept;
  void fail_send(Send& send, int status) noexcept;
  void drop_send(Send& send) noexcept;
  void lose_injected(Peer& peer, int status) noexcept;
  static void report_lost(Peer& peer, int status) noexcept;

  // receive.cc
  Buffers take_space(Receive& multi, size_t length) noexcept;
  bool return_space(Receive& multi) noexcept;
  void retire(Receive& multi) noexcept { x_queues->retire(multi, x_received); }
  Unexpected* store_unexpected(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                               const std::byte* payload, size_t length) noexcept;
  void release_unexpected(Unexpected& message) noexcept;
  void send_budget(Peer& peer) noexcept;
  void restrain(Peer& peer, transport::Link& link) noexcept;
  bool cancel_send(const void* context) noexcept;
  static void complete_receive(CompletionSink& sink, const Completion& done,
                               size_t message_length) noexcept;
  static void complete_placed(CompletionSink& sink, const Completion& done, size_t message_length,
                              int status) noexcept;

  // arrival.cc
  void on_packet(transport::Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) noexcept override;
  void on_eager(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                const std::byte* payload, size_t length) noexcept;
  void on_early(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                const std::byte* payload, size_t length) noexcept;
  int place_eager(Receive& receive, const wire::MessageHeader& header, uint64_t source,
                  const std::byte* payload) noexcept;
  int place(const Receive& receive, const Buffers& target, const std::byte* payload,
            size_t length) noexcept;
  void place_special(Receive& receive, Peer& peer, const wire::MessageHeader& header,
                     const std::byte* payload) noexcept;
  void place_whole(Receive& receive, const wire::MessageHeader& header, uint64_t source,
                   const std::byte* payload, size_t length) noexcept;
  void on_control(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                  const std::byte* payload, size_t length) noexcept;
  void on_budget(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                 size_t length) noexcept;

  // eager.cc
  int send_eager(Send& send) noexcept;
  void on_fin(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
              size_t length) noexcept;

  // rendezvous.cc
  int send_rts(Send& send) noexcept;
  void on_rts(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
              const std::byte* payload, size_t length) noexcept;
  void begin_delivery(Receive& receive, Peer& peer, transport::Link& link,
                      const wire::MessageHeader& header,
                      const transport::Exposure& exposure) noexcept;
  int start(Delivery& delivery) noexcept;
  bool flush_deliveries(Peer& peer) noexcept;
  void settle_delivery(Delivery& delivery, int status) noexcept;
  void finish_delivery(Delivery& delivery, int status) noexcept;
  void on_cts(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
              const std::byte* payload, size_t length) noexcept;
  int write(Send& send) noexcept;
  void on_write_done(Send& send, int status) noexcept;
  void on_peer_done(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                    size_t length) noexcept;

  // one_sided_initiator.cc
  int post_one_sided(const OneSidedArgs& args, CompletionSink* sink) noexcept;
  Send* make_one_sided(const OneSidedArgs& args, Peer& peer) noexcept;
  bool keep_operands(Send& send, const OneSidedArgs& args) noexcept;
  int launch_one_sided(Send& send) noexcept;
  int send_segments(Send& send) noexcept;
  int send_transfer(Send& send, bool exposed, uint64_t* packet = nullptr) noexcept;
  int gather_from_device(const Buffers& memory, std::byte* to) noexcept;
  int send_atomic(Send& send) noexcept;
  int send_atomic_part(Send& send) noexcept;
  void launched(Send& send, bool exposed) noexcept;
  void settle_send(Send& send, int status) noexcept;
  void on_result(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                 const std::byte* payload, size_t length) noexcept;

  // one_sided_target.cc
  void on_one_sided(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                    const std::byte* payload, size_t length) noexcept;
  void on_segments(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                   const std::byte* payload, size_t length) noexcept;
  bool parse(Peer& peer, const wire::OneSidedHeader& header, Request& request) noexcept;
  int locate(Request& request, uint64_t access) noexcept;
  int add_range(Request& request, const wire::Segment& segment, uint64_t access) noexcept;
  void on_transfer(Peer& peer, transport::Link& link, Request& request) noexcept;
  bool must_flush(const Peer& peer, const Request& request) noexcept;
  void on_device_transfer(Peer& peer, transport::Link& link, Request& request,
                          uint64_t access) noexcept;
  void on_device_packet(Peer& peer, transport::Link& link, Request& request) noexcept;
  void serve(Peer& peer, transport::Link& link, Request& request) noexcept;
  int start(Service& service) noexcept;
  bool flush_services(Peer& peer) noexcept;
  void settle_service(Service& service, int status) noexcept;
  void finish_service(Service& service, int status) noexcept;
  void drop_service(Service& service) noexcept;
  void drop_services(Peer& peer, const transport::Link* link) noexcept;
  void report_access(const Peer& peer, const Request& request, uint64_t access) noexcept;
  void answer(Peer& peer, transport::Link& link, const Request& request, const Buffers& bytes,
              bool lasting) noexcept;
  Service* make_service(Peer& peer, transport::Link& link, const Request& request) noexcept;
  static void hold_regions(Service& service) noexcept;
  static bool keep_copy(Service& service, const Buffers& bytes) noexcept;
  int send_result(Peer& peer, wire::RequestId initiator, const Buffers& bytes,
                  size_t& done) noexcept;

  // one_sided_direct.cc
  int launch_direct(Send& send) noexcept;
  int access(Send& send, Grant& granted) noexcept;
  Grant* flush_grant(const Send& send) noexcept;
  Grant* permitting_grant(const Send& send) noexcept;
  void read_one_byte(Send& send, const Grant& grant) noexcept;
  void retry_direct(Send& send, int status) noexcept;
  int launch_retractable(Send& send) noexcept;
  int mind_retractable(Peer& peer) noexcept;
  int spare_target(Peer& peer) noexcept;
  bool retract(Send& send) noexcept;
  Grant* usable_grant(const Send& send) noexcept;
  bool overtakes_read(const Send& send) const noexcept;
  void leave_way(Send& send) noexcept;
  void on_access(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                 const std::byte* payload, size_t length) noexcept;
  void on_grant(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                const std::byte* payload, size_t length) noexcept;
  void on_revoke(Peer& peer, transport::Link& link, uint64_t key) noexcept;
  void answer_revoke(Peer& peer, uint64_t key, uint8_t flags) noexcept;
  void on_revoked(Peer& peer, const wire::OneSidedHeader& header) noexcept;
  void grant_after(Peer& peer, transport::Link& link, const Request& request) noexcept;
  void grant(Peer& peer, transport::Link& link, uint64_t key, Region& region) noexcept;
  static bool describe(transport::Link& link, Region& region, Granted& granted,
                       transport::Exposure& memory) noexcept;
  void grant_to_self(Peer& peer, uint64_t key) noexcept;
  Grants* grants_of(Peer& peer) noexcept;
  // one_sided_short.cc
  Grant* recall(Peer& peer, uint64_t key) noexcept;
  bool is_plain(const OneSidedArgs& args) const noexcept;
  void on_access_done(util::PoolHandle handle, int status) noexcept;
  void finish_access(Access& access, int status) noexcept;
  void give_back(Peer& peer, const Grant& grant) noexcept;

  // one_sided_atomic.cc
  void on_atomic(Peer& peer, transport::Link& link, Request& request) noexcept;

  // failure.cc
  void lose(Peer& peer, const transport::Link* link, int status) noexcept override;
  void fail_sends(Peer& peer, int status) noexcept;
  bool fail_deliveries(util::IntrusiveList<Delivery>& list, const transport::Link* link,
                       int status) noexcept;
  static void leave_link(Delivery& delivery) noexcept;
  void fail_unfetched(Matcher& queues, const transport::Link* link, int status) noexcept;
  bool fail_directed(Matcher& queues, const Peer& peer, int status) noexcept;
  bool directed_at(const Peer& peer, bool tagged) noexcept;
  void fail_receive(Receive& receive, int status) noexcept {
    x_queues->fail(receive, status, receive.sink_or(x_received));
  }
  void orphan(util::IntrusiveList<Delivery>& deliveries) noexcept;

  const EngineConfig x_config;
  const std::vector<transport::Transport*> x_transports;
  CompletionSink& x_sent;
  CompletionSink& x_received;
  const OneSidedSetup* x_one_sided_setup = nullptr;

  /// A caller that only ever sends must still see what its peers tell it.
  static constexpr unsigned kSendsPerProgress = 64;

  Peers x_peers;
  Controls x_controls{x_peers};
  unsigned x_sends_since_progress = 0;
  ReceiveQueues x_own;  ///< empty with a shared receive context
  util::Pool<Send> x_sends;
  util::Pool<Delivery> x_deliveries;
  util::Pool<Unexpected> x_unexpected;
  util::Pool<OneSided, 16> x_one_sided;
  util::Pool<Access> x_accesses;
  util::Pool<Service, 16> x_services;
  SharedReceives* x_shared;  ///< null: receives are posted here
  ReceiveQueues* x_queues;   ///< x_own, or the shared ones
  std::byte x_flush_sink{};  ///< read into, never looked at
  size_t x_injected = 0;     ///< sends that are `owed`
};

// --- the short way of a message, part of the entry points
// -----------------------------------------

/// Whether a send needs nothing but one packet, now.
inline bool Engine::goes_direct(const SendArgs& args, const Peer& peer) noexcept {
  return peer.direct && !args.until_delivered && !args.fence &&
         args.length <= transport::kAlwaysEager;
}

/// False: nothing happened.
inline bool Engine::send_direct(const SendArgs& args, Peer& peer) noexcept {
  const transport::Header header =
      wire::encode({wire::Op::eager, args.wire_flags(), 0, 0, args.tag, args.data, args.length});
  const auto hint = args.more ? transport::SendHint::more : transport::SendHint::none;
  if (peer.link->send(header, args.iov, args.count, args.length, hint) != 0) [[unlikely]]
    return false;
  x_sent.succeed(args.report) = {args.context, args.completion_flags(), 0, nullptr, 0, 0,
                                 UINT64_MAX};
  return true;
}

inline int Engine::post_send(const SendArgs& args) noexcept {
  Peer* peer = x_peers.at(args.destination);
  if (!peer) [[unlikely]]
    return -FI_EINVAL;
  if (goes_direct(args, *peer) && ++x_sends_since_progress < kSendsPerProgress) [[likely]]
    if (send_direct(args, *peer)) [[likely]]
      return 0;
  return post_send_slow(args.by_member(), *peer);
}

inline int Engine::post_receive(const ReceiveArgs& args) noexcept {
  const Peer* source = args.source == kAnySource ? nullptr : x_peers.at(args.source);
  if (!source && args.source != kAnySource) [[unlikely]]
    return -FI_EINVAL;
  Receive* receive = x_own.make(args);
  if (!receive) [[unlikely]]
    return -FI_ENOMEM;
  receive->source = source;
  if (UnexpectedEntry* message = x_own.matcher(args.tagged).post(*receive)) [[unlikely]] {
    x_own.satisfy(*receive, static_cast<Unexpected&>(*message));
    return 0;
  }
  receive->posted = true;
  return 0;
}

}  // namespace erdma::protocol
