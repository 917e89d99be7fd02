#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "protocol/address_book.h"
#include "protocol/completion.h"
#include "protocol/match.h"
#include "protocol/peer.h"
#include "protocol/request.h"
#include "transport/transport.h"
#include "util/clock.h"

namespace erdma::protocol {

/// All 12 flavours of sending a message.
struct SendArgs {
  uint64_t destination;  ///< fi_addr_t
  const iovec* iov;
  size_t count;   ///< at most transport::kMaxIov
  size_t length;  ///< sum of the iov
  uint64_t tag;
  uint64_t data;
  void* context;
  bool tagged;
  bool has_data;
  bool inject;           ///< memory is the caller's again on return
  bool report;           ///< write a CQ entry
  bool until_delivered;  ///< FI_DELIVERY_COMPLETE
  bool fence;
  bool more;
};

struct ReceiveArgs {
  const iovec* iov;
  size_t count;
  size_t length;
  uint64_t source;  ///< fi_addr_t; UINT64_MAX = any
  uint64_t tag;
  uint64_t ignore;
  void* context;
  bool tagged;
  bool report;
  bool multi;  ///< FI_MULTI_RECV
};

/// FI_PEEK, FI_CLAIM and FI_DISCARD of fi_trecvmsg(3).
enum class Probe : uint8_t { peek, peek_claim, peek_discard, claim, claim_discard };

/// Which link leads to an address: decided in fabric/.
class Router {
 public:
  /// -FI_EHOSTUNREACH if no transport of this endpoint leads there.
  virtual util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept = 0;

 protected:
  ~Router() = default;
};

struct EngineConfig {
  size_t inject_size;       ///< largest SendArgs::length with inject
  size_t unexpected_bytes;  ///< budget per peer
  uint32_t send_limit;      ///< sends in flight before -FI_EAGAIN
};

/// The messages of one endpoint: turns operations into packets and packets into completions.
/// Single-threaded: the caller holds the domain lock. Owns every request and peer; the transports
/// outlive it. Methods are spread over engine, send, receive, eager, rendezvous and failure.cc.
class Engine final : public transport::Sink {
 public:
  Engine(const EngineConfig& config, AddressBook& book, Router& router,
         std::vector<transport::Transport*> transports, CompletionSink& sent,
         CompletionSink& received);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// 0 = exactly one completion follows (none on success if !report); -FI_EAGAIN = try again after
  /// progress(); else nothing was begun.
  [[nodiscard]] int post_send(const SendArgs& args) noexcept;
  [[nodiscard]] int post_receive(const ReceiveArgs& args) noexcept;
  [[nodiscard]] int probe(const ReceiveArgs& args, Probe kind) noexcept;
  /// Withdraws the oldest receive, or send not yet on the wire, with this context: completes with
  /// FI_ECANCELED. -FI_ENOENT if there is none.
  int cancel(const void* context) noexcept;

  /// Returns the number of steps forward.
  int progress() noexcept;
  /// True while something taken from the caller is not yet handed to a link and its caller will
  /// never hear of it: injected messages, fins.
  bool owes() noexcept;

  /// The endpoint closes: no peer touches the caller's memory any more.
  void withdraw_all() noexcept;

  void set_min_multi_recv(size_t bytes) noexcept { x_min_multi_recv = bytes; }
  size_t min_multi_recv() const noexcept { return x_min_multi_recv; }

  /// The address vector changed.
  void address_inserted(uint64_t fi_addr, const util::SocketAddress& address) noexcept;
  void address_removed(uint64_t fi_addr, const util::SocketAddress& address) noexcept;

 private:
  // engine.cc
  void on_packet(transport::Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) noexcept override;
  void on_done(uint64_t token, int status) noexcept override;
  void on_link_down(transport::Link& link, int status) noexcept override;
  Peer* peer_at(uint64_t fi_addr) noexcept;
  Peer* resolve(uint64_t fi_addr) noexcept;
  Peer* peer_named(const util::SocketAddress& address) noexcept;
  Peer* adopt(transport::Link& link) noexcept;
  int connect(Peer& peer) noexcept;
  void backlog(Peer& peer) noexcept;
  int work_off(Peer& peer) noexcept;
  void on_control(Peer& peer, const wire::ControlHeader& header, const std::byte* payload,
                  size_t length) noexcept;
  void send_control(Peer& peer, const wire::ControlHeader& header,
                    const transport::Exposure* exposure) noexcept;
  bool flush_controls(Peer& peer) noexcept;
  Matcher& matcher(bool tagged) noexcept { return tagged ? x_tagged : x_untagged; }

  // send.cc
  int post_send_slow(const SendArgs& args, Peer& peer) noexcept;
  Send* make_send(const SendArgs& args, Peer& peer) noexcept;
  int launch(Send& send) noexcept;
  bool flush_sends(Peer& peer) noexcept;
  void withdraw(Send& send) noexcept;
  void finish_send(Send& send, int status) noexcept;
  void drop_send(Send& send) noexcept;

  // receive.cc
  bool accept(Receive& receive, Unexpected& message) noexcept;
  Receive* make_receive(const ReceiveArgs& args) noexcept;
  Buffers take_space(Receive& multi, size_t length) noexcept;
  bool return_space(Receive& multi) noexcept;
  void retire(Receive& multi) noexcept;
  Unexpected* store_unexpected(Peer& peer, const wire::MessageHeader& header,
                               const std::byte* payload, size_t length) noexcept;
  void release_unexpected(Unexpected& message) noexcept;
  void discard(Unexpected& message) noexcept;
  void send_budget(Peer& peer) noexcept;
  int claim(const ReceiveArgs& args, bool drop) noexcept;
  void report_probe(const ReceiveArgs& args, const Unexpected& message) noexcept;
  bool cancel_receive(const void* context, bool tagged) noexcept;
  bool cancel_send(const void* context) noexcept;
  void complete_receive(const Completion& done, size_t message_length) noexcept;

  // eager.cc
  int send_eager(Send& send) noexcept;
  void on_eager(Peer& peer, const wire::MessageHeader& header, const std::byte* payload,
                size_t length) noexcept;
  void place_eager(Receive& receive, const wire::MessageHeader& header, uint64_t source,
                   const std::byte* payload) noexcept;
  void send_fin(Peer& peer, wire::RequestId sender, int status) noexcept;
  void on_fin(const Peer& peer, const wire::ControlHeader& header) noexcept;

  // rendezvous.cc
  int send_rts(Send& send) noexcept;
  void on_rts(Peer& peer, const wire::MessageHeader& header, const std::byte* payload,
              size_t length) noexcept;
  void begin_delivery(Receive& receive, Peer& peer, const wire::MessageHeader& header,
                      const transport::Exposure& exposure) noexcept;
  int start(Delivery& delivery) noexcept;
  bool flush_deliveries(Peer& peer) noexcept;
  void finish_delivery(Delivery& delivery, int status) noexcept;
  void on_cts(Peer& peer, const wire::ControlHeader& header, const std::byte* payload,
              size_t length) noexcept;
  int write(Send& send) noexcept;
  void on_write_done(Send& send, int status) noexcept;
  void on_peer_done(const Peer& peer, const wire::ControlHeader& header) noexcept;

  // failure.cc
  void protocol_violation(Peer& peer, const char* what) noexcept;
  void fail_peer(Peer& peer, int status) noexcept;
  void fail_unfetched(Matcher& queues, const Peer& peer, int status) noexcept;
  void mark_unfetched(Unexpected& message, int status) noexcept;
  void fail_directed(Matcher& queues, const Peer& peer, int status) noexcept;
  void fail_receive(Receive& receive, int status) noexcept;

  const EngineConfig x_config;
  AddressBook& x_book;
  Router& x_router;
  const std::vector<transport::Transport*> x_transports;
  CompletionSink& x_sent;
  CompletionSink& x_received;

  PeerTable x_table;
  unsigned x_sends_since_progress = 0;
  util::Pool<Receive> x_receives;
  Matcher x_tagged;
  Matcher x_untagged;
  util::IntrusiveList<Peer, BacklogTag> x_backlog;
  util::Pool<Send> x_sends;
  util::Pool<Delivery> x_deliveries;
  util::Pool<Unexpected> x_unexpected;
  util::Pool<Control> x_controls;
  Unexpected* x_claimed = nullptr;
  size_t x_min_multi_recv = 64;
  size_t x_injected = 0;  ///< injected sends not yet handed to a link
  std::unordered_map<util::SocketAddress, std::unique_ptr<Peer>, util::SocketAddressHash> x_peers;
};

}  // namespace erdma::protocol
