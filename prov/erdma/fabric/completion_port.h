#pragma once

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "protocol/completion.h"

namespace erdma::fabric {

/// Where the completions of one direction of an endpoint go: a CQ, a counter, both or neither.
class CompletionPort final : public protocol::CompletionSink {
 public:
  explicit CompletionPort(const void* of) noexcept : owner(of) {}

  protocol::CompletionEntry& succeed(bool report) noexcept override {
    if (!cntr && cq && report && cq->appends_at_once()) [[likely]]
      return cq->append(owner);
    return succeed_anyhow(report);
  }
  void fail(const protocol::ErrorCompletion& completion) noexcept override {
    if (cntr) cntr->add_failure();
    if (!cq) return;
    if (!completion.anonymous) return cq->push_error(completion, owner);
    // fi_endpoint(3): an operation without a context is reported with the endpoint's. Without that
    // either, the entry would tell nobody anything, and applications take op_context for a pointer.
    if (!endpoint_context) return;
    protocol::ErrorCompletion named = completion;
    named.context = endpoint_context;
    cq->push_error(named, owner);
  }

  bool counts() const noexcept override { return cntr != nullptr; }

  CompletionQueue* cq = nullptr;
  Counter* cntr = nullptr;
  bool selective = false;  ///< FI_SELECTIVE_COMPLETION
  bool unasked = false;    ///< report what did not ask for it, too
  const void* owner;       ///< for purge()
  void* endpoint_context = nullptr;

 private:
  // Apart, so that the usual case saves no registers.
  [[gnu::noinline]] protocol::CompletionEntry& succeed_anyhow(bool report) noexcept {
    if (cntr) cntr->add_success(1);
    return cq && (report || unasked) ? cq->append(owner) : x_unreported;
  }

  protocol::CompletionEntry x_unreported{};
};

}  // namespace erdma::fabric
