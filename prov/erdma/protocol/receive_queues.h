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
  bool device;  ///< some of it is not host memory

  uint64_t completion_flags() const noexcept { return FI_RECV | (tagged ? FI_TAGGED : FI_MSG); }
};

class Receives;

/// FI_PEEK, FI_CLAIM and FI_DISCARD of fi_trecvmsg(3).
enum class Probe : uint8_t { peek, peek_claim, peek_discard, claim, claim_discard };
/// Of a message that was set aside, known by its context alone.
constexpr bool is_claim(Probe kind) noexcept {
  return kind == Probe::claim || kind == Probe::claim_discard;
}

/// What is to be received: posted receives, and messages that came before theirs. Of one engine, or
/// of several with a shared receive context. Owns the receives; the messages are their engine's.
/// The caller holds the domain lock. Members are public for the engine's fast path.
struct ReceiveQueues {
  explicit ReceiveQueues(CompletionSink& sink) noexcept : orphans(sink) {}
  ReceiveQueues(const ReceiveQueues&) = delete;
  ReceiveQueues& operator=(const ReceiveQueues&) = delete;

  bool deep() const noexcept { return tagged.deep() || untagged.deep(); }
  Matcher& matcher(bool is_tagged) noexcept { return is_tagged ? tagged : untagged; }

  /// Null: out of memory. `source` is left to the caller.
  Receive* make(const ReceiveArgs& args) noexcept;
  /// Queues it, or gives it the message that waits for it.
  void post(Receive& receive, bool is_tagged) noexcept {
    UnexpectedEntry* message = matcher(is_tagged).post(receive);
    if (message) [[unlikely]]
      satisfy(receive, static_cast<Unexpected&>(*message));
    else
      receive.posted = true;
  }
  /// Gives a receive that is not queued the message that it matched, and more if it wants more.
  void satisfy(Receive& receive, Unexpected& message) noexcept;
  /// As Engine::probe(); `source` is null for any.
  int probe(const ReceiveArgs& args, Probe kind, const Peer* source) noexcept;
  bool cancel(const void* context) noexcept {
    return cancel_in(tagged, context) || cancel_in(untagged, context);
  }

  /// Ends a receive that is in no queue; a multi-receive buffer that is still in use goes on.
  void fail(Receive& receive, int status, CompletionSink& sink) noexcept;
  /// Ends a multi-receive buffer that is used up and no longer written to.
  void retire(Receive& multi, CompletionSink& sink) noexcept;

  /// The next part of the buffer for a message of `length` bytes; less if less is left. Its first
  /// piece tells where the message lies even if that has no bytes.
  Buffers take_space(Receive& multi, size_t length) noexcept;
  /// A message is placed. True if its completion is the buffer's last (FI_MULTI_RECV).
  static bool return_space(Receive& multi) noexcept;
  /// Reports a received message. `placed`: 0, or why its bytes could not be placed. FI_ETRUNC if it
  /// was longer than what it was placed into.
  static void complete(CompletionSink& sink, const Completion& done, size_t message_length,
                       int placed) noexcept;

  /// A receive that only this source can satisfy is posted; null: one that any can.
  bool has_posted_from(const Peer* source) noexcept;
  /// Ends those of one source. True if there were some.
  bool fail_directed(const Peer& source, int status, CompletionSink& sink) noexcept;
  /// Messages whose bytes are still with the sender, over a link that is down, can no longer be
  /// had; their headers stay matchable, so that their receives learn of it. Nobody waits for the
  /// fin of the others.
  void fail_unfetched(const transport::Link* link, int status) noexcept;
  /// The messages of an engine that ends go.
  void forget_messages(const Receives& engine) noexcept;

  util::Recycler<Receive> receives;
  Matcher tagged;
  Matcher untagged;
  Unexpected* claimed = nullptr;
  size_t min_multi_recv = 64;
  CompletionSink& orphans;  ///< of what no message belongs to

 private:
  int claim(const ReceiveArgs& args, bool drop) noexcept;
  bool cancel_in(Matcher& queues, const void* context) noexcept;
  bool fail_directed(Matcher& queues, const Peer& source, int status,
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
