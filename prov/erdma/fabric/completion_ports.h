#pragma once

#include <cstdint>
#include <vector>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/progress.h"
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

/// Where one endpoint reports what it did: a port for each kind of operation, and the completion
/// queues and counters behind them, which drive `source`. The caller holds the domain lock.
/// Invariant: what is bound outlives it, and is attached to `source` once.
class CompletionPorts {
 public:
  /// Completion queues know entries by `source`; `context` is the endpoint's.
  CompletionPorts(ProgressSource& source, void* context) noexcept;

  /// fi_ep_bind(3), of what is of the same domain, which is who takes the same lock.
  int bind(CompletionQueue& cq, uint64_t flags, const util::OptionalLock& lock);
  int bind(Counter& cntr, uint64_t flags, const util::OptionalLock& lock);
  /// The counter counts elsewhere, too: whoever waits for it drives this endpoint.
  void watch_counter(Counter& cntr);
  void unwatch_counter(Counter& cntr) noexcept;
  /// Ends all that is bound. Entries that nobody has read are gone.
  void detach() noexcept;

  /// The source's descriptors may have changed.
  void sources_changed() noexcept;
  /// Whether a thread sleeps on one of them.
  bool sleeping() const noexcept;
  void wake() noexcept;

  CompletionPort sent;
  CompletionPort received;
  // Of one-sided operations: the queues of the two above, with counters of their own.
  CompletionPort reads;
  CompletionPort writes;
  CompletionPort remote_reads;
  CompletionPort remote_writes;

 private:
  struct Of {
    uint64_t event;
    CompletionPort& port;
  };
  template <typename Visit>
  void for_each(Visit&& visit) const;

  ProgressSource& x_source;
  const Of x_all[6];
  std::vector<Counter*> x_counters;
};

}  // namespace erdma::fabric
