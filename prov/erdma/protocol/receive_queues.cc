#include "protocol/receive_queues.h"

#include <algorithm>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/receives.h"

namespace erdma::protocol {

void ReceiveQueues::satisfy(Receive& receive, Unexpected& message) noexcept {
  UnexpectedEntry* entry = &message;
  do {
    auto& next = static_cast<Unexpected&>(*entry);
    if (!next.peer->receives->accept(receive, next)) return;
    entry = matcher(receive.completion_flags & FI_TAGGED).post(receive);
  } while (entry);
  receive.posted = true;
}

// --- FI_PEEK, FI_CLAIM, FI_DISCARD --------------------------------------------------------------

namespace {

/// The report of a message that a probe has found. As for a miss, FI_COMPLETION does not matter.
Completion found_by(const ReceiveArgs& args, const Unexpected& message) noexcept {
  Completion found;
  found.context = args.context;
  found.flags = args.completion_flags() | data_flag(message.header);
  found.length = message.header.length;
  found.data = message.header.data;
  found.tag = message.header.tag;
  found.source = message.peer->fi_addr;
  return found;
}

}  // namespace

/// A peek is not counted: a counter of FI_RECV counts received messages (fi_endpoint(3)), and the
/// receive, or the discard, of the message is counted later.
int ReceiveQueues::probe(const ReceiveArgs& args, Probe kind, const Peer* source) noexcept {
  if (is_claim(kind)) return claim(args, kind == Probe::claim_discard);
  Matcher& queues = matcher(args.tagged);
  UnexpectedEntry* entry = queues.find(source, args.tag, args.ignore);
  if (!entry) {
    ErrorCompletion miss(args.context, args.completion_flags(), FI_ENOMSG, args.tag);
    miss.counted = false;
    default_sink.fail(miss);
    return 0;
  }
  auto& message = static_cast<Unexpected&>(*entry);
  Receives& owner = *message.peer->receives;
  const Completion found = found_by(args, message);
  if (kind != Probe::peek) queues.remove(message);
  if (kind == Probe::peek_discard) {
    owner.discard(message, found);
    return 0;
  }
  if (kind == Probe::peek_claim) {
    message.claimed_by = args.context;
    message.next_claimed = claimed;
    claimed = &message;
  }
  owner.sink().succeed_uncounted() = found;
  return 0;
}

/// Receives, or drops, the message that an FI_PEEK|FI_CLAIM with the same context has claimed.
int ReceiveQueues::claim(const ReceiveArgs& args, bool drop) noexcept {
  Unexpected** link = &claimed;
  while (*link && (*link)->claimed_by != args.context) link = &(*link)->next_claimed;
  Unexpected* message = *link;
  if (!message) return -FI_EINVAL;
  Receive* receive = drop ? nullptr : make(args);
  if (!drop && !receive) return -FI_ENOMEM;
  *link = message->next_claimed;
  if (!drop) {
    receive->sticky = false;
    receive->special &= uint8_t(~Receive::kMulti);
    message->peer->receives->accept(*receive, *message);
    return 0;
  }
  message->peer->receives->discard(*message, found_by(args, *message));
  return 0;
}

// --- the end of a receive -----------------------------------------------------------------------

void ReceiveQueues::complete(CompletionSink& sink, const Completion& done, size_t message_length,
                             int placed) noexcept {
  if (placed == 0 && message_length <= done.length) [[likely]]
    return sink.complete(done);
  ErrorCompletion failed;
  static_cast<Completion&>(failed) = done;
  failed.error = placed ? -placed : FI_ETRUNC;
  failed.overflow = placed ? 0 : message_length - done.length;
  if (placed) failed.length = 0;
  sink.fail(failed);
}

void ReceiveQueues::fail(Receive& receive, int status, CompletionSink& sink) noexcept {
  ErrorCompletion failed(receive.context, receive.completion_flags, -status, receive.tag);
  fail(receive, failed, sink);
}

void ReceiveQueues::fail(Receive& receive, const Peer& peer, const wire::MessageHeader& header,
                         int status, CompletionSink& sink) noexcept {
  ErrorCompletion failed(receive.context, receive.completion_flags | data_flag(header), -status,
                         header.tag);
  failed.data = header.data;
  failed.source = peer.fi_addr;
  fail(receive, failed, sink);
}

void ReceiveQueues::fail(Receive& receive, ErrorCompletion& failed, CompletionSink& sink) noexcept {
  failed.report = receive.report;
  const bool in_use = receive.deliveries > 0 || receive.posted || receive.held;
  const bool ends = !receive.multi() || !in_use;
  if (ends && receive.multi()) failed.release_buffer();
  if (ends) receives.release(receive);
  sink.fail(failed);
}

void ReceiveQueues::retire(Receive& multi, CompletionSink& sink) noexcept {
  if (!multi.exhausted || multi.deliveries > 0 || multi.held) return;
  ErrorCompletion ended(multi.context, multi.completion_flags, -multi.ended);
  ended.release_buffer();
  receives.release(multi);
  if (ended.error) sink.fail(ended);
}

bool ReceiveQueues::cancel_in(Matcher& queues, const void* context) noexcept {
  PostedEntry* entry = queues.posted_with_context(context);
  if (!entry) return false;
  auto& receive = static_cast<Receive&>(*entry);
  queues.remove(receive);
  receive.posted = false;
  if (receive.multi()) {
    receive.exhausted = true;
    receive.ended = -FI_ECANCELED;
    retire(receive, default_sink);
  } else {
    fail(receive, -FI_ECANCELED, receive.sink_or(default_sink));
  }
  return true;
}

// --- multi-receive buffers ----------------------------------------------------------------------

Buffers ReceiveQueues::take_space(Receive& multi, size_t length) noexcept {
  Buffers part;
  part.iov[0] = multi.buffers.iov[0];
  (void)hmem::slice(multi.buffers.iov, multi.buffers.count, multi.used, 1, part.iov);
  part.length = std::min(length, multi.buffers.length - multi.used);
  part.count =
      hmem::slice(multi.buffers.iov, multi.buffers.count, multi.used, part.length, part.iov);
  multi.used += part.length;
  ++multi.deliveries;
  if (multi.buffers.length - multi.used < std::max<size_t>(min_multi_recv, 1)) {
    multi.exhausted = true;
    if (multi.posted) matcher(multi.completion_flags & FI_TAGGED).remove(multi);
    multi.posted = false;
  }
  return part;
}

bool ReceiveQueues::return_space(Receive& multi) noexcept {
  --multi.deliveries;
  return multi.exhausted && multi.deliveries == 0 && !multi.ended;
}

// --- the end of a link, or of an engine ---------------------------------------------------------

bool ReceiveQueues::has_posted_from(const Peer* source) noexcept {
  for (Matcher* queues : {&tagged, &untagged})
    for (PostedEntry* entry = queues->first_posted(); entry; entry = queues->next_posted(*entry))
      if (entry->source == source) return true;
  return false;
}

bool ReceiveQueues::fail_posted_from(const Peer* source, int status,
                                     CompletionSink& sink) noexcept {
  const bool any = fail_posted_from(tagged, source, status, sink);
  return fail_posted_from(untagged, source, status, sink) || any;
}

bool ReceiveQueues::fail_posted_from(Matcher& queues, const Peer* source, int status,
                                     CompletionSink& sink) noexcept {
  bool any = false;
  for (PostedEntry* entry = queues.first_posted(); entry;) {
    PostedEntry* next = queues.next_posted(*entry);
    auto& receive = static_cast<Receive&>(*entry);
    if (receive.source == source) {
      any = true;
      queues.remove(receive);
      receive.posted = false;
      if (receive.multi() && receive.deliveries > 0) {
        receive.exhausted = true;
        receive.ended = status;
      } else {
        fail(receive, status, receive.sink_or(sink));
      }
    }
    entry = next;
  }
  return any;
}

void ReceiveQueues::fail_unfetched(const transport::Link* link, int status) noexcept {
  const auto mark = [&](Unexpected& message) {
    if (message.link != link) return;
    if (message.header.op == wire::Op::rts || message.arrival) message.status = status;
    message.arrival = nullptr;
    message.header.flags = uint8_t(message.header.flags & ~wire::kWantFin);
  };
  for (Matcher* queues : {&tagged, &untagged})
    for (UnexpectedEntry* entry = queues->first_unexpected(); entry;
         entry = queues->next_unexpected(*entry))
      mark(static_cast<Unexpected&>(*entry));
  for (Unexpected* message = claimed; message; message = message->next_claimed) mark(*message);
}

void ReceiveQueues::forget_messages(const Receives& engine) noexcept {
  for (Matcher* queues : {&tagged, &untagged}) {
    for (UnexpectedEntry* entry = queues->first_unexpected(); entry;) {
      UnexpectedEntry* next = queues->next_unexpected(*entry);
      if (static_cast<Unexpected&>(*entry).peer->receives == &engine) queues->remove(*entry);
      entry = next;
    }
  }
  for (Unexpected** link = &claimed; *link;) {
    if ((*link)->peer->receives == &engine)
      *link = (*link)->next_claimed;
    else
      link = &(*link)->next_claimed;
  }
}

}  // namespace erdma::protocol
