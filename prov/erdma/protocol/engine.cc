#include "protocol/engine.h"

#include <algorithm>
#include <cstring>

#include "protocol/waits.h"
#include "util/error_text.h"
#include "util/log.h"

namespace erdma::protocol {
namespace {

/// Tells the user where to look for the cause.
const char* advice(int status, bool was_up) noexcept {
  switch (status) {
    case -FI_ETIMEDOUT:
      return was_up ? "no sign of life for FI_ERDMA_PEER_TIMEOUT: look at its host and the network"
                    : "it did not appear within FI_ERDMA_CONNECT_TIMEOUT: is it running?";
    case -FI_ECONNRESET:
      return "its process or the connection ended: look at its output";
    case -FI_ECONNREFUSED:
      return was_up ? "no endpoint listens there any more"
                    : "no endpoint listens there, or it refuses this one";
    case -FI_EHOSTUNREACH:
      return "no route leads to it (ip route get), or this host has lost its own address";
    default:
      return "FI_LOG_LEVEL=warn may tell more";
  }
}

bool fits_inject(const SendArgs& args, const EngineConfig& config) noexcept {
  return !args.inject || args.length <= config.inject_size;
}

/// Tries to post an operation, before and after progress. If the progress has ended all operations
/// in flight, nothing would wake a caller that sleeps until there is room.
template <typename Post>
int with_room(Engine& engine, Post&& post) noexcept {
  if (post()) return 0;
  engine.progress();
  return post() ? 0 : -FI_EAGAIN;
}

enum class Loss { none, of_operations, of_messages_to_come };

/// Logs nothing if no operation of this endpoint needs the peer.
void tell_lost(const Peer& peer, const transport::Link& link, int status, Loss loss) noexcept {
  if (loss == Loss::of_operations)
    ERDMA_NOTICE(peer_lost, EP_DATA, "%s is lost (%s), operations with it end in errors: %s",
                 peer.address.to_string().c_str(), util::ErrorText(-status).c_str(),
                 advice(status, link.was_up()));
  if (loss == Loss::of_messages_to_come)
    ERDMA_NOTICE(peer_lost, EP_DATA,
                 "%s is lost (%s), receives from any source get nothing more from it: %s",
                 peer.address.to_string().c_str(), util::ErrorText(-status).c_str(),
                 advice(status, link.was_up()));
}

/// Passes on everything but messages: nobody sees those that a closing endpoint receives.
class WithoutMessages final : public transport::Sink {
 public:
  explicit WithoutMessages(transport::Sink& engine) noexcept : x_engine(engine) {}

  void on_packet(transport::Link& link, const std::byte* header_bytes, const std::byte* payload,
                 size_t length) override {
    wire::MessageHeader header;
    std::memcpy(&header, header_bytes, sizeof(header));
    const bool message = header.op == wire::Op::eager || header.op == wire::Op::rts ||
                         header.op >= wire::Op::first_fragment;
    if (!message) x_engine.on_packet(link, header_bytes, payload, length);
  }
  void on_done(uint64_t token, int status) noexcept override { x_engine.on_done(token, status); }
  void on_link_down(transport::Link& link, int status) noexcept override {
    x_engine.on_link_down(link, status);
  }
  bool waits_for(const transport::Link& link) noexcept override { return x_engine.waits_for(link); }
  void on_question() noexcept override { x_engine.on_question(); }

 private:
  transport::Sink& x_engine;
};

constexpr unsigned kMostSends = 1024;  ///< between two polls

/// Returns whether progress is due after this number of sends. If the last progress brought
/// something, the application should first read its completions and post new receives: messages
/// that are taken in before that are unexpected.
bool poll_due(unsigned sends, unsigned limit, bool made_progress) noexcept {
  return sends >= (made_progress ? kMostSends : limit);
}

}  // namespace

Engine::Engine(const EngineConfig& config, AddressBook& book, Router& router,
               std::vector<transport::Transport*> transports, CompletionSink& sent,
               CompletionSink& received, SharedReceives* shared)
    : x_config(config),
      x_transports(std::move(transports)),
      x_peers(book, router, *this, x_receives, shared),
      x_messages(x_sends, x_controls, sent),
      x_receives(x_config, x_peers, x_controls, received, shared) {
  if (shared) shared->join(*this, book);
}

Engine::~Engine() = default;

void Engine::enable_one_sided(const OneSidedSetup& setup) noexcept {
  x_one_sided = true;
  x_peers.set_own_name(setup.name);
  x_grants.enable(setup);
  x_fast_rma.enable(setup);
  x_rma.enable(setup);
  x_target.enable(setup);
}

// --- operations ---------------------------------------------------------------------------------

/// Sends a message that the fast path refused. If the link had no room, polls once before it falls
/// back to a request, since then all later sends would need requests, too.
int Engine::send_slowly(const SendArgs& args, Peer& peer, bool& direct) noexcept {
  if (!fits_inject(args, x_config)) return -FI_EMSGSIZE;
  if (x_messages.must_poll()) progress();
  const bool is_short = Messages::is_short(args), goes = Messages::goes_direct(args, peer);
  if (!is_short && goes && ++x_sends_since_progress < kSendsPerProgress &&
      (direct = x_messages.send_direct(args, peer)))
    return 0;
  if (!goes && Messages::may_go_direct(args, peer)) return send_asking(args, peer, direct);
  if ((goes && !x_made_progress) ||
      poll_due(++x_sends_since_progress, kSendsPerProgress, x_made_progress))
    progress();
  direct = Messages::goes_direct(args, peer) && x_messages.send_direct(args, peer);
  return direct ? 0 : post_slow(args, peer, nullptr, false);
}

/// Likewise, where the link is to be asked first. A poll that is due comes before that, so that the
/// link does not time it with the message.
int Engine::send_asking(const SendArgs& args, Peer& peer, bool& direct) noexcept {
  if (poll_due(++x_sends_since_progress, kSendsPerProgress, x_made_progress)) progress();
  if (!Messages::may_go_direct(args, peer)) return post_slow(args, peer, nullptr, false);
  if (!Messages::prefers_packets(args.length, peer)) return post_slow(args, peer, nullptr, true);
  direct = x_messages.send_direct(args, peer);
  if (direct) return 0;
  if (!x_made_progress) progress();
  direct = Messages::may_go_direct(args, peer) && x_messages.send_direct(args, peer);
  return direct ? 0 : post_slow(args, peer, nullptr, false);
}

/// `args` is a copy, so that the fast path can keep its own in registers. The fast path leaves
/// short messages of a chain (FI_MORE) to this function.
int Engine::post_send_slow(const SendArgs& args, Peer& peer) noexcept {
  const transport::Link* const holder = x_held_back.take();
  bool direct = (args.more || holder) && Messages::is_short(args) &&
                Messages::goes_direct(args, peer) && ++x_sends_since_progress < kSendsPerProgress &&
                x_messages.send_direct(args, peer);
  const int status = direct ? 0 : send_slowly(args, peer, direct);
  if (holder && !(direct && peer.link == holder)) progress();
  if (direct && args.more) x_held_back.put(*peer.link);
  return status;
}

void Engine::let_leave() noexcept {
  if (x_held_back.take()) progress();
}

/// The result of a call that names a peer that there is not.
int Engine::refuse(uint64_t fi_addr) noexcept {
  let_leave();
  return x_peers.refusal(fi_addr);
}

int Engine::post_send(const SendArgs& args, CompletionSink& sink) noexcept {
  let_leave();
  Peer* peer = x_peers.at(args.destination);
  if (!peer) return x_peers.refusal(args.destination);
  if (!fits_inject(args, x_config)) return -FI_EMSGSIZE;
  if (x_messages.must_poll() ||
      poll_due(++x_sends_since_progress, kSendsPerProgress, x_made_progress))
    progress();
  return post_slow(args, *peer, &sink, false);
}

int Engine::post_slow(const SendArgs& args, Peer& peer, CompletionSink* sink,
                      bool rendezvous) noexcept {
  return with_room(
      *this, [&] { return room_for_sends() && x_messages.send(args, peer, sink, rendezvous); });
}

int Engine::post_one_sided(const OneSidedArgs& args, CompletionSink* sink) noexcept {
  let_leave();
  const SendArgs& local = args.local;
  const bool fits = fits_inject(local, x_config);
  if (!sink && fits && FastRma::is_plain(args)) {
    if (post_access({local.destination, local.iov[0].iov_base, local.length,
                     args.segments[0].address, args.segments[0].key, local.context,
                     args.op == wire::Op::read, local.report, local.inject}))
      return 0;
  }
  Peer* peer = x_peers.at(local.destination);
  if (!peer) return x_peers.refusal(local.destination);
  if (!x_one_sided) return -FI_EINVAL;
  if (poll_due(++x_sends_since_progress, kSendsPerProgress, x_made_progress)) progress();
  if (!fits) return -FI_EMSGSIZE;
  const bool counts = args.op != wire::Op::read || !peer->itself;
  return with_room(*this,
                   [&] { return (!counts || room_for_sends()) && x_rma.post(args, *peer, sink); });
}

int Engine::post_receive(const ReceiveArgs& args, CompletionSink& sink) noexcept {
  const Peer* source = args.source == kAnySource ? nullptr : x_peers.at(args.source);
  if (!source && args.source != kAnySource) return x_peers.refusal(args.source);
  return x_receives.post(args, source, sink) ? 0 : -FI_EAGAIN;
}

int Engine::probe(const ReceiveArgs& args, Probe kind) noexcept {
  let_leave();
  if (is_claim(kind)) return x_receives.own().probe(args, kind, nullptr);
  const Peer* source = args.source == kAnySource ? nullptr : x_peers.at(args.source);
  if (args.source != kAnySource && !source) return x_peers.refusal(args.source);
  progress(true);
  return x_receives.own().probe(args, kind, source);
}

int Engine::cancel(const void* context) noexcept {
  return x_receives.own().cancel(context) || x_sends.cancel(context) ? 0 : -FI_ENOENT;
}

// --- progress -----------------------------------------------------------------------------------

inline int Engine::poll_transports(bool all, transport::Sink& sink) noexcept {
  int steps = 0;
  x_left_packets.begin_poll(
      all || x_messages.must_poll_all() ||
      (x_left_packets.goes_on() &&
       (x_left_packets.is_late() || awaits_packets(x_sends, x_fast_rma, x_receives, x_peers))));
  for (transport::Transport* transport : x_transports)
    if (!transport->quiet()) steps += transport->poll(sink);
  if (x_left_packets.end_poll()) x_messages.polled();
  return steps;
}

int Engine::progress(bool all) noexcept {
  x_messages.count_short(std::min(x_sends_since_progress, kMostSends));
  x_sends_since_progress = 0;
  const int steps = poll_transports(all, *this);
  x_made_progress = steps > 0;
  return x_peers.waiting().empty() ? steps : steps + retry_waiting(all, *this);
}

int Engine::progress_without_messages() noexcept {
  WithoutMessages rest(*this);
  const int steps = poll_transports(true, rest);
  return steps + retry_waiting(true, rest);
}

/// Nothing would wake this process for messages that Messages::must_poll() holds back, so they are
/// not left when it returns. Not inlined, so that a poll that finds nothing stays short.
[[gnu::noinline]] int Engine::retry_waiting(bool all, transport::Sink& sink) noexcept {
  int steps = 0;
  auto& waiting = x_peers.waiting();
  while (!waiting.empty()) {
    for (Peer *peer = waiting.front(), *next; peer; peer = next) {
      next = waiting.next(*peer);
      steps += retry_pending(*peer);
    }
    if (!x_messages.must_poll()) break;
    steps += poll_transports(all, sink);
  }
  return steps;
}

/// Starts what waits for room, control packets first: they free memory and credits at the peer.
int Engine::retry_pending(Peer& peer) noexcept {
  // First, as what is queued may wait for operations that this ends, and the caller may sleep then.
  const int executed = peer.retractable > 0 ? x_rma.retractables().poll(peer) : 0;
  Incoming* const incoming = peer.incoming.get();
  const bool room =
      start_all(peer.controls) &&
      (!incoming || (start_all(incoming->starting) && start_all(incoming->services))) &&
      start_all(peer.queued);
  x_receives.deliveries().report_rest(peer);
  if (peer.backlogged()) return executed + (room && peer.waiting() ? 1 : 0);
  util::IntrusiveList<Peer, BacklogTag>::erase(peer);
  peer.update_direct();
  return 1;
}

bool Engine::has_injected() noexcept {
  if (x_sends.has_injected()) return true;
  auto& waiting = x_peers.waiting();
  for (Peer* peer = waiting.front(); peer; peer = waiting.next(*peer))
    if (!peer->controls.empty()) return true;
  return false;
}

// --- what transports report ---------------------------------------------------------------------

/// Receives::on_eager() and place_whole() are inlined here, so that one function handles the most
/// frequent packet: a short message for a posted receive.
void Engine::on_packet(transport::Link& link, const std::byte* header_bytes,
                       const std::byte* payload, size_t length) {
  // The header may lie in memory that the peer can still change. All checks use this copy; the asm
  // keeps the compiler from reading the original again.
  wire::MessageHeader header;
  std::memcpy(&header, header_bytes, sizeof(header));
  asm volatile("" : "+m"(header));
  Peer& peer = x_peers.peer_of(link);
  if (header.op == wire::Op::eager) [[likely]] {
    if (x_receives.on_eager(peer, link, header, payload, length)) [[likely]] {
      if (x_receives.all_served()) x_served = x_left_packets.leave();
    } else if (x_receives.all_served()) {
      x_served = x_left_packets.leave_unexpected();
    }
    return;
  }
  if (header.op == wire::Op::fragment) {
    const auto fragment = wire::reread<wire::ControlHeader>(header);
    if (x_receives.fragments().on_fragment(peer, link, fragment, payload, length) &&
        x_receives.all_served())
      x_served = x_left_packets.leave();
    return;
  }
  if (header.op == wire::Op::first_fragment)
    return x_receives.on_first_fragment(peer, link, header, payload, length);
  if (header.op == wire::Op::rts) return x_receives.on_rts(peer, link, header, payload, length);
  if (header.op >= wire::Op::segments) return on_one_sided(peer, link, header, payload, length);
  on_control(peer, link, header, payload, length);
}

void Engine::on_control(Peer& peer, transport::Link& link, const wire::MessageHeader& bytes,
                        const std::byte* payload, size_t length) noexcept {
  const auto header = wire::reread<wire::ControlHeader>(bytes);
  switch (header.op) {
    case wire::Op::fin:
      return x_sends.on_fin(peer, link, header, length);
    case wire::Op::cts:
      return x_messages.on_cts(peer, link, header, payload, length);
    case wire::Op::done:
      return x_receives.deliveries().on_peer_done(peer, link, header, length);
    case wire::Op::budget:
      return x_messages.on_budget(peer, link, header, length);
    default:
      return inbound::protocol_violation(link, "a packet of unknown kind");
  }
}

void Engine::on_one_sided(Peer& peer, transport::Link& link, const wire::MessageHeader& bytes,
                          const std::byte* payload, size_t length) {
  const auto header = wire::reread<wire::OneSidedHeader>(bytes);
  if (header.op == wire::Op::result) return x_rma.on_result(peer, link, header, payload, length);
  if (header.op > wire::Op::result) return x_grants.on_packet(peer, link, header, payload, length);
  x_target.on_packet(peer, link, header, payload, length);
}

void Engine::on_preview(transport::Link& link, const std::byte* header_bytes) noexcept {
  wire::MessageHeader header;
  std::memcpy(&header, header_bytes, sizeof(header));
  if (const auto* peer = static_cast<const Peer*>(link.user))
    x_receives.own().matcher(header.flags & wire::kTagged).prefetch(*peer, header.tag);
}

void Engine::on_done(uint64_t token, int status) noexcept {
  const util::PoolHandle handle = util::PoolHandle::of(token);
  switch (TokenOf(token >> 48)) {
    case TokenOf::access:
      return x_fast_rma.on_done(handle, status);
    case TokenOf::send:
      return x_sends.on_moved(handle, status);
    case TokenOf::delivery:
      return x_receives.deliveries().on_moved(handle, status);
    case TokenOf::service:
      return x_target.on_moved(handle, status);
  }
}

void Engine::on_question() noexcept {
  if (x_config.waits) report_waits(x_peers, x_receives.queues(), x_fast_rma, *x_config.waits);
}

bool Engine::waits_for(const transport::Link& link) noexcept {
  Peer* peer = static_cast<Peer*>(link.user);
  if (!peer) return false;
  if (peer->sending() || (peer->incoming && !peer->incoming->active.empty())) return true;
  return peer->link == &link && x_receives.waits_for(peer);
}

// --- the end of a peer, or of the endpoint ------------------------------------------------------

void Engine::on_link_down(transport::Link& link, int status) noexcept {
  Peer* peer = static_cast<Peer*>(link.user);
  if (!peer || x_peers.take_fallback(*peer, link, status)) return;
  lose(*peer, &link, status);
}

namespace {

/// Each side answers over the link on which it sends. If the two sides send over different links
/// and one of these has ended, answers to what moves over the other one may be lost, so that ends,
/// too.
void end_what_awaits_answers(Peer& peer, const transport::Link* ended, int status) noexcept {
  if (!ended || !peer.link) return;
  if (peer.link != ended && peer.sending()) return peer.link->fail(status);
  if (peer.link == ended) Deliveries::fail_granted(peer, *ended, status);
}

}  // namespace

/// Every operation that waits for the peer over this link ends in one error completion. Operations
/// over another link to the same peer continue, unless an answer to them may be lost. Later sends
/// connect again.
void Engine::lose(Peer& peer, const transport::Link* link, int status) noexcept {
  if (peer.failing) return;
  peer.failing = true;
  const bool sending = peer.link == link;
  if (peer.held == link) peer.held = nullptr;
  if (peer.throttled_by == link) peer.throttled_by = nullptr;
  bool lost = sending && (peer.sending() || !peer.queued.empty());
  if (sending) {
    x_controls.drop(peer);
    x_fast_rma.fail(peer, status);
    x_sends.fail(peer, status);
    peer.forget_agreements();
  }
  x_target.drop(peer, link);
  x_receives.deliveries().report_rest(peer);
  lost |= x_receives.fail(peer, link, status, sending);
  if (link && status != -FI_ESHUTDOWN)
    tell_lost(peer, *link, status,
              lost ? Loss::of_operations
              : sending && link->was_up() && x_receives.waits_for(nullptr)
                  ? Loss::of_messages_to_come
                  : Loss::none);
  auto& hook = static_cast<util::ListHook<BacklogTag>&>(peer);
  if (hook.linked() && !peer.backlogged()) util::IntrusiveList<Peer, BacklogTag>::erase(peer);
  end_what_awaits_answers(peer, link, status);
  peer.failing = false;
  peer.update_direct();
}

void Engine::abandon(const Region& region, bool by_force) noexcept {
  x_target.abandon(region, by_force);
  if (by_force) x_grants.abandon(region);
}

void Engine::detach(bool revoke) noexcept {
  if (revoke) {
    x_target.report_rest();
    for (Peer* const peer : x_peers.all()) {
      x_sends.revoke_memory(*peer);
      Deliveries::revoke_memory(*peer);
      x_receives.deliveries().report_all(*peer);
    }
  }
  x_receives.leave_shared(*this);
}

}  // namespace erdma::protocol
