#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/fast_rma.h"
#include "protocol/messages.h"
#include "protocol/receives.h"
#include "protocol/rma_initiator.h"
#include "protocol/rma_target.h"
#include "util/clock.h"

namespace erdma::protocol {

/// Says which polls are left out, and which leave packets in their rings once every receive is
/// served (Sink::take_served()). So an application that receives more slowly than its peers send
/// finds its next message in the ring, from which it is copied once, instead of at the end of a
/// queue of messages that came unexpected. As packets of other kinds may lie behind those that are
/// left, neither goes on for long.
class LeftPackets {
 public:
  /// Tests pass a clock. Null: the processor's counter (CycleClock), since to read the system's
  /// clock takes as long as to receive.
  explicit LeftPackets(const util::Clock* clock) noexcept : x_clock(clock) {}

  /// A message has just been received, and the endpoint waits for nothing. True: no poll is needed
  /// until the next receive.
  bool skip_poll() noexcept {
    const uint64_t time = now();
    if (x_skipped == 0) x_first_skipped = time;
    const bool in_time = time - x_first_skipped <= kLongestSkip;
    if (++x_skipped <= kMostSkipped && in_time) return true;
    x_skipped = 0;
    x_follows_skips = in_time;
    return false;
  }
  /// The last poll left packets behind a message, and take_left() has not said so yet.
  bool left() const noexcept { return x_left; }
  bool take_left() noexcept { return std::exchange(x_left, false); }
  /// The next poll goes further than those before it.
  bool goes_on() const noexcept { return x_in_succession >= kMost; }
  /// Call it if the next poll goes on. True: the last one that did is long past, so that peers may
  /// wait for what lies behind the packets that were left.
  bool is_late() noexcept {
    const uint64_t time = now();
    return time - std::exchange(x_went_on, time) > kLongest;
  }
  /// `all`: this poll may not leave packets.
  void begin_poll(bool all) noexcept {
    const bool goes_on = this->goes_on();
    x_all = all;
    x_leaves_matched = !goes_on;
    x_leaves_unexpected = std::exchange(x_follows_skips, false) || goes_on;
    x_left = false;
  }
  /// Returns whether the transport may leave the packets behind a message that was received.
  bool leave() noexcept { return leave_if(x_leaves_matched); }
  /// The same behind an unexpected message.
  bool leave_unexpected() noexcept { return leave_if(x_leaves_unexpected); }
  /// True: the poll left none.
  bool end_poll() noexcept {
    x_in_succession = x_left && x_leaves_matched ? x_in_succession + 1 : 0;
    return !x_left;
  }

  /// Polls in succession that leave packets behind a message that was received. The next one goes
  /// on to an unexpected message, or takes all packets if this endpoint waits for any, or the time
  /// (ns, right within a factor of three) since the last one that went on is longer.
  static constexpr unsigned kMost = 16;
  static constexpr uint64_t kLongest = 1'000'000;
  /// Polls that are skipped in succession, and the time in which that happens (ns, likewise: peers
  /// may access memory here). The next poll takes at most one unexpected message of each hot ring,
  /// or all packets if that time has passed.
  static constexpr unsigned kMostSkipped = 16;
  static constexpr uint64_t kLongestSkip = 20'000;

 private:
  bool leave_if(bool permitted) noexcept {
    const bool leaves = permitted && !x_all;
    x_left = x_left || leaves;
    return leaves;
  }

  uint64_t now() const noexcept { return x_clock ? x_clock->now() : util::CycleClock().now(); }

  const util::Clock* const x_clock;
  unsigned x_in_succession = 0;
  uint64_t x_went_on = 0;
  unsigned x_skipped = 0;
  uint64_t x_first_skipped = 0;
  bool x_follows_skips = false;
  // Of the present poll.
  bool x_all = false;
  bool x_leaves_matched = false;
  bool x_leaves_unexpected = false;
  bool x_left = false;
};

/// The link that may hold back the last message, since more are to come (FI_MORE). A large number
/// in the count of sends since the last poll says that there is one: the next operation then takes
/// the slow path, which lets the message leave, and a poll, which does so too, resets the count.
class HeldBack {
 public:
  explicit HeldBack(unsigned& sends) noexcept : x_sends(sends) {}

  void put(const transport::Link& link) noexcept {
    x_link = &link;
    x_sends += kMark;
  }
  /// Forgets the link and returns it. Null: there is none.
  const transport::Link* take() noexcept {
    if (x_sends < kMark) [[likely]]
      return nullptr;
    x_sends -= kMark;
    return x_link;
  }

 private:
  static constexpr unsigned kMark = 1u << 20;

  unsigned& x_sends;
  const transport::Link* x_link = nullptr;
};

/// True: an endpoint with these parts waits for packets of its peers, apart from messages.
inline bool awaits_packets(const Sends& sends, const FastRma& rma, Receives& receives,
                           Peers& peers) noexcept {
  return sends.in_use() + rma.in_use() > 0 || receives.deliveries().any() ||
         !peers.waiting().empty();
}

/// The protocol of one endpoint: turns operations into packets and packets into completions. It
/// dispatches both to its parts and makes progress. Single-threaded: the caller holds the domain
/// lock. Owns its parts, and with them every request and peer. The transports end after its last
/// use.
class Engine final : public transport::Sink, PeerLoss {
 public:
  Engine(const EngineConfig& config, AddressBook& book, Router& router,
         std::vector<transport::Transport*> transports, CompletionSink& sent,
         CompletionSink& received, SharedReceives* shared = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// 0: exactly one completion follows, but a success writes no CQ entry if !report. -FI_EAGAIN:
  /// nothing happened, try again after progress(). Other errors are final; nothing happened.
  [[nodiscard]] int post_send(const SendArgs& args) noexcept;
  [[nodiscard]] int post_receive(const ReceiveArgs& args) noexcept;
  /// Completes once the target or its NIC has executed the operation. Needs enable_one_sided(). The
  /// send limit does not apply to an endpoint's reads from itself: clients flush by such reads, and
  /// some clients do not handle -FI_EAGAIN.
  [[nodiscard]] int post_one_sided(const OneSidedArgs& args,
                                   CompletionSink* sink = nullptr) noexcept;
  /// The fast path of post_one_sided(). False: nothing happened; take the slow path.
  [[nodiscard]] bool post_access(const AccessArgs& args) noexcept;
  /// These complete at `sink` instead of the endpoint's queues. `sink` outlives the operation or
  /// the engine. Not for multi-receive.
  [[nodiscard]] int post_send(const SendArgs& args, CompletionSink& sink) noexcept;
  [[nodiscard]] int post_receive(const ReceiveArgs& args, CompletionSink& sink) noexcept;
  /// To be called where an operation is refused before it comes here: messages with
  /// SendArgs::more leave with the next call in any case.
  void let_leave() noexcept;
  [[nodiscard]] int probe(const ReceiveArgs& args, Probe kind) noexcept;
  /// Cancels the oldest receive with this context or, if there is none, a send of which no packet
  /// was sent. It completes with FI_ECANCELED. -FI_ENOENT: there is neither.
  int cancel(const void* context) noexcept;

  /// Polls the transports and retries what waits. Returns the number of steps of progress. `all`:
  /// leaves no packets in their rings (LeftPackets).
  int progress(bool all = false) noexcept;
  /// Since the last call of needs_no_poll() a receive took an unexpected message, or the last poll
  /// ended with a message that was received.
  bool just_received() noexcept {
    return x_receives.unexpected().released() || x_left_packets.left();
  }
  /// True: progress() can wait until the application posts the next receive: just_received(), and
  /// this endpoint waits for nothing.
  bool needs_no_poll() noexcept {
    const bool taken = x_receives.unexpected().take_released();
    if (!x_left_packets.take_left() && !taken) return false;
    const bool due = x_sends_since_progress >= kSendsPerProgress || x_messages.must_poll_all();
    return !due && x_receives.all_served() &&
           !awaits_packets(x_sends, x_fast_rma, x_receives, x_peers) && x_left_packets.skip_poll();
  }
  /// True while links have not taken all injected messages and control packets (fins, for example):
  /// no completion tells the caller when they leave.
  bool has_injected() noexcept;
  /// True while the next operation for some peer is a single packet that its link does not take
  /// yet, mostly because the connection is being made, or an operation of a peer is not over.
  bool has_packets() noexcept { return x_sends.has_packets() || x_target.serving(); }

  /// Until this call one-sided operations of peers are refused. `setup` outlives the engine.
  void enable_one_sided(const OneSidedSetup& setup) noexcept;
  /// The region is about to close. Reports operations on it that are over, and, if `by_force`,
  /// fails the links of peers whose operations on it are under way.
  void abandon(const Region& region, bool by_force) noexcept;
  Grants& grants() noexcept { return x_grants; }

  /// As progress(), for an endpoint that is closing. Messages that arrive are lost, since the
  /// memory for them may belong to the application again.
  int progress_without_messages() noexcept;
  /// The endpoint closes: takes no receive of the shared receive context any more and, if `revoke`
  /// (not in a forked child), revokes all memory that is shared for messages and RMA. Afterwards
  /// the engine must not be used, but for cancel_deliveries().
  void detach(bool revoke) noexcept;
  /// Ends the receives of the shared context that messages were filling at detach(). The caller
  /// has ended the transports, so that nobody writes to the buffers any more.
  void cancel_deliveries(CompletionSink& sink) noexcept { x_receives.cancel_deliveries(sink); }
  /// For callers that may not call progress() for a while: executes the retractable operations
  /// whose peers have not looked at them. Returns their number.
  int execute_all_retractable() noexcept { return x_rma.retractables().execute_all_retractable(); }

  /// The number of sends and one-sided operations that fit until one completes.
  size_t room_for_sends() const noexcept {
    const size_t in_use = x_sends.in_use() + x_fast_rma.in_use();
    return in_use < x_config.send_limit ? x_config.send_limit - in_use : 0;
  }

  Peers& peers() noexcept { return x_peers; }
  void set_min_multi_recv(size_t bytes) noexcept { x_receives.own().min_multi_recv = bytes; }

 private:
  void on_packet(transport::Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) override;
  void on_done(uint64_t token, int status) noexcept override;
  void on_link_down(transport::Link& link, int status) noexcept override;
  bool waits_for(const transport::Link& link) noexcept override;
  bool wants_previews() const noexcept override { return x_receives.own().deep(); }
  void on_preview(transport::Link& link, const std::byte* header) noexcept override;
  void on_question() noexcept override;
  void lose(Peer& peer, const transport::Link* link, int status) noexcept override;

  [[gnu::cold]] int refuse(uint64_t fi_addr) noexcept;
  int post_send_slow(const SendArgs& args, Peer& peer) noexcept;
  int send_slowly(const SendArgs& args, Peer& peer, bool& direct) noexcept;
  int send_asking(const SendArgs& args, Peer& peer, bool& direct) noexcept;
  int post_slow(const SendArgs& args, Peer& peer, CompletionSink* sink, bool rendezvous) noexcept;
  int poll_transports(bool all, transport::Sink& sink) noexcept;
  int retry_waiting(bool all, transport::Sink& sink) noexcept;
  int retry_pending(Peer& peer) noexcept;
  void on_control(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                  const std::byte* payload, size_t length) noexcept;
  void on_one_sided(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                    const std::byte* payload, size_t length);

  /// Sends after which the engine makes progress by itself: an application that only sends must
  /// still handle the packets of its peers.
  static constexpr unsigned kSendsPerProgress = 64;

  const EngineConfig x_config;
  const std::vector<transport::Transport*> x_transports;
  unsigned x_sends_since_progress = 0;
  bool x_made_progress = false;  ///< the last poll of the transports took at least one step
  LeftPackets x_left_packets{x_config.clock};
  bool x_one_sided = false;  ///< enable_one_sided() was called
  Peers x_peers;
  Controls x_controls{x_peers};
  Sends x_sends{x_config, x_peers};
  Messages x_messages;
  Receives x_receives;
  Grants x_grants{x_peers, x_controls};
  FastRma x_fast_rma{x_grants};
  RmaInitiator x_rma{x_config, x_sends, x_grants, x_peers};
  RmaTarget x_target{x_config, x_peers, x_controls, x_grants};
  HeldBack x_held_back{x_sends_since_progress};
};

// --- the fast path of a message, inlined into the entry points ----------------------------------

inline int Engine::post_send(const SendArgs& args) noexcept {
  Peer* peer = x_peers.at(args.destination);
  if (!peer) [[unlikely]]
    return refuse(args.destination);
  if (!args.more && Messages::is_short(args) && Messages::goes_direct(args, *peer) &&
      ++x_sends_since_progress < kSendsPerProgress) [[likely]]
    if (x_messages.send_direct(args, *peer)) [[likely]]
      return 0;
  const SendArgs copy = args.by_member();
  return post_send_slow(copy, *peer);
}

inline int Engine::post_receive(const ReceiveArgs& args) noexcept {
  const Peer* source = args.source == kAnySource ? nullptr : x_peers.at(args.source);
  if (!source && args.source != kAnySource) [[unlikely]]
    return refuse(args.source);
  return x_receives.post(args, source) ? 0 : -FI_ENOMEM;
}

inline bool Engine::post_access(const AccessArgs& args) noexcept {
  Peer* const peer = x_peers.known(args.destination);
  if (!peer || !room_for_sends() || x_sends_since_progress + 1 >= kSendsPerProgress) [[unlikely]]
    return false;
  if (!x_fast_rma.post(*peer, args)) [[unlikely]]
    return false;
  ++x_sends_since_progress;
  return true;
}

}  // namespace erdma::protocol
