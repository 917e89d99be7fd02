#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <rdma/fabric.h>

#include "protocol/completion.h"
#include "protocol/match.h"
#include "protocol/request.h"
#include "util/recycler.h"

namespace erdma::protocol {

inline constexpr uint64_t kAnySource = UINT64_MAX;

struct ReceiveArgs {
  const iovec* iov;
  size_t count;
  size_t length;
  uint64_t source;  ///< fi_addr_t, or kAnySource
  uint64_t tag;
  uint64_t ignore;
  void* context;
  bool tagged;
  bool report;
  bool multi;   ///< FI_MULTI_RECV
  bool device;  ///< part of `iov` is device memory

  uint64_t completion_flags() const noexcept { return FI_RECV | (tagged ? FI_TAGGED : FI_MSG); }
};

class Receives;

/// FI_PEEK, FI_CLAIM and FI_DISCARD of fi_trecvmsg(3).
enum class Probe : uint8_t { peek, peek_claim, peek_discard, claim, claim_discard };
/// Returns whether `kind` is about a message that an earlier FI_PEEK has claimed. The context alone
/// identifies it.
constexpr bool is_claim(Probe kind) noexcept {
  return kind == Probe::claim || kind == Probe::claim_discard;
}

/// Posted receives and unexpected messages of one engine, or of the engines that share a receive
/// context. Owns the receives; each message belongs to its engine. The caller holds the domain
/// lock. Members are public for the engine's fast path.
struct ReceiveQueues {
  explicit ReceiveQueues(CompletionSink& sink) noexcept : default_sink(sink) {}
  ReceiveQueues(const ReceiveQueues&) = delete;
  ReceiveQueues& operator=(const ReceiveQueues&) = delete;

  bool deep() const noexcept { return tagged.deep() || untagged.deep(); }
  Matcher& matcher(bool is_tagged) noexcept { return is_tagged ? tagged : untagged; }

  /// Null: out of memory. The caller sets `source`.
  Receive* make(const ReceiveArgs& args) noexcept;
  /// Queues the receive, or gives it the oldest unexpected message that matches.
  void post(Receive& receive, bool is_tagged) noexcept {
    UnexpectedEntry* message = matcher(is_tagged).post(receive);
    if (message) [[unlikely]]
      satisfy(receive, static_cast<Unexpected&>(*message));
    else
      receive.posted = true;
  }
  /// Gives a receive that is not queued the message that it matched. A multi-receive buffer takes
  /// further messages while they match, and is queued if it has room left.
  void satisfy(Receive& receive, Unexpected& message) noexcept;
  /// As Engine::probe(). `source` is null for any source.
  int probe(const ReceiveArgs& args, Probe kind, const Peer* source) noexcept;
  bool cancel(const void* context) noexcept {
    return cancel_in(tagged, context) || cancel_in(untagged, context);
  }

  /// Fails a receive that is in no queue. A multi-receive buffer reports the failure of one message
  /// and stays, unless it is no longer in use.
  void fail(Receive& receive, int status, CompletionSink& sink) noexcept;
  /// The same for a receive that has matched a message of `peer`, which the report names.
  void fail(Receive& receive, const Peer& peer, const wire::MessageHeader& header, int status,
            CompletionSink& sink) noexcept;
  /// Releases a multi-receive buffer that is exhausted and has no message in progress.
  void retire(Receive& multi, CompletionSink& sink) noexcept;

  /// Takes the next part of the buffer for a message of `length` bytes; the part is shorter if less
  /// is left. Its first piece has the address of the message even if the message is empty.
  Buffers take_space(Receive& multi, size_t length) noexcept;
  /// A message of the buffer is complete. Returns true if its completion is the buffer's last one
  /// (FI_MULTI_RECV).
  static bool return_space(Receive& multi) noexcept;
  /// Reports a received message. `placed`: 0, or why its bytes could not be placed. Reports
  /// FI_ETRUNC if the message was longer than the buffer.
  static void complete(CompletionSink& sink, const Completion& done, size_t message_length,
                       int placed) noexcept;

  /// Returns whether a receive is posted that names this source; null: a receive from any source.
  bool has_posted_from(const Peer* source) noexcept;
  /// Fails the receives that name this source; null: those from any source. Returns true if there
  /// were any.
  bool fail_posted_from(const Peer* source, int status, CompletionSink& sink) noexcept;
  /// For a link that is down: unexpected messages whose bytes are still at the sender are lost.
  /// They stay in the queue, so that the receives that match them fail. For the other messages of
  /// the link no fin will be sent.
  void fail_unfetched(const transport::Link* link, int status) noexcept;
  /// Removes the messages of an engine that ends.
  void forget_messages(const Receives& engine) noexcept;

  util::Recycler<Receive> receives;
  Matcher tagged;
  Matcher untagged;
  Unexpected* claimed = nullptr;
  size_t min_multi_recv = 64;
  CompletionSink& default_sink;  ///< for completions without a message

 private:
  int claim(const ReceiveArgs& args, bool drop) noexcept;
  void fail(Receive& receive, ErrorCompletion& failed, CompletionSink& sink) noexcept;
  bool cancel_in(Matcher& queues, const void* context) noexcept;
  bool fail_posted_from(Matcher& queues, const Peer* source, int status,
                        CompletionSink& sink) noexcept;
};

inline Receive* ReceiveQueues::make(const ReceiveArgs& args) noexcept {
  Receive* receive = receives.acquire();
  if (!receive) [[unlikely]]
    return nullptr;
  receive->tag = args.tag;
  receive->ignore = args.ignore;
  receive->context = args.context;
  receive->sticky = args.multi;
  receive->buffers.count = args.count;
  receive->buffers.length = args.length;
  if (args.count == 1) [[likely]] {
    receive->buffers.iov[0] = args.iov[0];
  } else if (args.count > 0) {
    std::memcpy(receive->buffers.iov, args.iov, args.count * sizeof(iovec));
  }
  receive->completion_flags = args.completion_flags();
  receive->report = args.report;
  receive->special =
      uint8_t((args.multi ? Receive::kMulti : 0) | (args.device ? Receive::kDevice : 0));
  return receive;
}

}  // namespace erdma::protocol
