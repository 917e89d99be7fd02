#include "protocol/receive_queues.h"

#include <rdma/fi_errno.h>

#include "protocol/engine.h"

namespace erdma::protocol {

void ReceiveQueues::satisfy(Receive& receive, Unexpected& message) noexcept {
  UnexpectedEntry* entry = &message;
  do {
    auto& next = static_cast<Unexpected&>(*entry);
    if (!next.peer->engine->accept(receive, next)) return;
    entry = matcher(receive.completion_flags & FI_TAGGED).post(receive);
  } while (entry);
  receive.posted = true;
}

// --- FI_PEEK, FI_CLAIM, FI_DISCARD --------------------------------------------------------------

namespace {

/// Found, and said so whatever FI_COMPLETION says, as a miss is: the caller asked to be told.
void report_probe(const ReceiveArgs& args, const Unexpected& message) noexcept {
  Completion found;
  found.context = args.context;
  found.flags = args.completion_flags() | data_flag(message.header);
  found.length = message.header.length;
  found.data = message.header.data;
  found.tag = message.header.tag;
  found.source = message.peer->fi_addr;
  message.peer->engine->received().complete(found);
}

}  // namespace

int ReceiveQueues::probe(const ReceiveArgs& args, Probe kind, const Peer* source) noexcept {
  if (is_claim(kind)) return claim(args, kind == Probe::claim_discard);
  Matcher& queues = matcher(args.tagged);
  UnexpectedEntry* entry = queues.find(source, args.tag, args.ignore);
  if (!entry) {
    ErrorCompletion miss;
    miss.context = args.context;
    miss.flags = args.completion_flags();
    miss.tag = args.tag;
    miss.error = FI_ENOMSG;
    orphans.fail(miss);
    return 0;
  }
  auto& message = static_cast<Unexpected&>(*entry);
  report_probe(args, message);
  if (kind == Probe::peek) return 0;
  queues.remove(message);
  if (kind == Probe::peek_discard) {
    message.peer->engine->discard(message);
  } else {
    message.claimed_by = args.context;
    message.next_claimed = claimed;
    claimed = &message;
  }
  return 0;
}

/// Receives, or drops, the message that a FI_PEEK|FI_CLAIM with the same context set aside.
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
    message->peer->engine->accept(*receive, *message);
    return 0;
  }
  report_probe(args, *message);
  message->peer->engine->discard(*message);
  return 0;
}

// --- the end of a receive -----------------------------------------------------------------------

void ReceiveQueues::fail(Receive& receive, int status, CompletionSink& sink) noexcept {
  ErrorCompletion failed;
  failed.context = receive.context;
  failed.flags = receive.completion_flags;
  failed.tag = receive.tag;
  failed.report = receive.report;
  failed.error = -status;
  const bool in_use = receive.deliveries > 0 || receive.posted || receive.held;
  const bool ends = !receive.multi() || !in_use;
  if (ends) receives.release(receive);
  sink.fail(failed);
}

void ReceiveQueues::retire(Receive& multi, CompletionSink& sink) noexcept {
  if (!multi.exhausted || multi.deliveries > 0 || multi.held) return;
  ErrorCompletion cancelled;
  cancelled.context = multi.context;
  cancelled.flags = multi.completion_flags;
  cancelled.error = FI_ECANCELED;
  const bool report = multi.cancelled;
  receives.release(multi);
  if (report) sink.fail(cancelled);
}

bool ReceiveQueues::cancel(const void* context) noexcept {
  return cancel_in(tagged, context) || cancel_in(untagged, context);
}

bool ReceiveQueues::cancel_in(Matcher& queues, const void* context) noexcept {
  PostedEntry* entry = queues.posted_with_context(context);
  if (!entry) return false;
  auto& receive = static_cast<Receive&>(*entry);
  queues.remove(receive);
  receive.posted = false;
  if (receive.multi()) {
    receive.cancelled = receive.exhausted = true;
    retire(receive, orphans);
  } else {
    fail(receive, -FI_ECANCELED, receive.sink_or(orphans));
  }
  return true;
}

}  // namespace erdma::protocol
