#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/fast_rma.h"
#include "protocol/messages.h"
#include "protocol/receives.h"
#include "protocol/rma_initiator.h"
#include "protocol/rma_target.h"

namespace erdma::protocol {

/// The messages of one endpoint: turns operations into packets and packets into completions.
/// Single-threaded: the caller holds the domain lock. Owns its parts, and with them every request
/// and peer; the transports outlive it. What is left here: who does what, and progress.
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
  [[nodiscard]] int post_one_sided(const OneSidedArgs& args,
                                   CompletionSink* sink = nullptr) noexcept;
  /// The fast path of post_one_sided(). False: nothing happened, it is to take the slow one.
  [[nodiscard]] bool post_access(const AccessArgs& args) noexcept;
  /// With a `sink` operations complete there, whatever `report` says; it outlives the operation, or
  /// the engine. Never multi-receive.
  [[nodiscard]] int post_send(const SendArgs& args, CompletionSink& sink) noexcept;
  [[nodiscard]] int post_receive(const ReceiveArgs& args, CompletionSink& sink) noexcept;
  [[nodiscard]] int probe(const ReceiveArgs& args, Probe kind) noexcept;
  /// Withdraws the oldest receive, or send not yet on the wire, with this context: completes with
  /// FI_ECANCELED. -FI_ENOENT if there is none.
  int cancel(const void* context) noexcept;

  /// Returns the number of steps forward.
  int progress() noexcept;
  /// True while something taken from the caller is not yet handed to a link and its caller will
  /// never hear of it: injected messages, fins.
  bool has_injected() noexcept;
  /// True while the next operation for some peer waits for its link to take the one packet that it
  /// is: a connection that is being made, mostly.
  bool has_packets() noexcept { return x_sends.has_packets(); }

  /// Before it peers' one-sided operations are refused. `setup` outlives the engine.
  void enable_one_sided(const OneSidedSetup& setup) noexcept;
  /// Ends the connections of peers whose operations on the region are under way.
  void abandon(const Region& region) noexcept;
  Grants& grants() noexcept { return x_grants; }

  /// The endpoint closes: no peer touches the caller's memory any more.
  void revoke_shared() noexcept;
  /// Nobody may call progress() for a while: what waits for a peer that does not look, and can be
  /// done without it, is done. Returns how many operations were.
  int execute_all_retractable() noexcept { return x_rma.retractables().execute_all_retractable(); }
  /// After that: what it had to do with the shared receive context ends.
  void leave_shared() noexcept { x_receives.leave_shared(*this); }

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

  int post_send_slow(SendArgs args, Peer& peer) noexcept;
  int post_slow(const SendArgs& args, Peer& peer, CompletionSink* sink) noexcept;
  bool sends_full() const noexcept {
    return x_sends.in_use() + x_fast_rma.in_use() >= x_config.send_limit;
  }
  int work_off(Peer& peer) noexcept;
  void on_control(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                  const std::byte* payload, size_t length) noexcept;
  void on_one_sided(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                    const std::byte* payload, size_t length);

  /// A caller that only ever sends must still see what its peers tell it.
  static constexpr unsigned kSendsPerProgress = 64;

  const EngineConfig x_config;
  const std::vector<transport::Transport*> x_transports;
  unsigned x_sends_since_progress = 0;
  bool x_brought = false;    ///< the last progress did something
  bool x_one_sided = false;  ///< enabled
  Peers x_peers;
  Controls x_controls{x_peers};
  Sends x_sends{x_config, x_peers};
  Messages x_messages;
  Receives x_receives;
  Grants x_grants{x_peers, x_controls};
  FastRma x_fast_rma{x_grants};
  RmaInitiator x_rma{x_config, x_sends, x_grants, x_peers};
  RmaTarget x_target{x_config, x_peers, x_controls, x_grants};
};

// --- the fast path of a message, part of the entry points ---------------------------------------

inline int Engine::post_send(const SendArgs& args) noexcept {
  Peer* peer = x_peers.at(args.destination);
  if (!peer) [[unlikely]]
    return x_peers.refusal(args.destination);
  if (Messages::is_short(args) && Messages::goes_direct(args, *peer) &&
      ++x_sends_since_progress < kSendsPerProgress) [[likely]]
    if (x_messages.send_direct(args, *peer)) [[likely]]
      return 0;
  return post_send_slow(args.by_member(), *peer);
}

inline int Engine::post_receive(const ReceiveArgs& args) noexcept {
  const Peer* source = args.source == kAnySource ? nullptr : x_peers.at(args.source);
  if (!source && args.source != kAnySource) [[unlikely]]
    return x_peers.refusal(args.source);
  return x_receives.post(args, source) ? 0 : -FI_ENOMEM;
}

inline bool Engine::post_access(const AccessArgs& args) noexcept {
  Peer* const peer = x_peers.known(args.destination);
  if (!peer || sends_full() || x_sends_since_progress + 1 >= kSendsPerProgress) [[unlikely]]
    return false;
  if (!x_fast_rma.post(*peer, args)) [[unlikely]]
    return false;
  ++x_sends_since_progress;
  return true;
}

}  // namespace erdma::protocol
