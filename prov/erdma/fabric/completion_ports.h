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
  protocol::CompletionEntry& succeed_uncounted() noexcept override {
    return cq ? cq->append(owner) : x_unreported;
  }
  void fail(const protocol::ErrorCompletion& completion) noexcept override {
    if (cntr && completion.counted) cntr->add_failure();
    if (!cq) return;
    if (!completion.anonymous) return cq->push_error(completion, owner);
    // fi_endpoint(3): an operation without a context is reported with the endpoint's context. If
    // that is null too, no entry is written: applications dereference op_context.
    if (!endpoint_context) return;
    protocol::ErrorCompletion named = completion;
    named.context = endpoint_context;
    cq->push_error(named, owner);
  }

  bool counts() const noexcept override { return cntr != nullptr; }

  CompletionQueue* cq = nullptr;
  Counter* cntr = nullptr;
  bool selective = false;  ///< FI_SELECTIVE_COMPLETION
  bool unasked = false;    ///< also report operations that did not ask for a completion
  const void* owner;       ///< for purge()
  void* endpoint_context = nullptr;

 private:
  // A function of its own, so that the common case saves no registers.
  [[gnu::noinline]] protocol::CompletionEntry& succeed_anyhow(bool report) noexcept {
    if (cntr) cntr->add_success(1);
    return cq && (report || unasked) ? cq->append(owner) : x_unreported;
  }

  protocol::CompletionEntry x_unreported{};
};

/// Where one endpoint reports completions: a port for each kind of operation, and the completion
/// queues and counters behind the ports, which drive `source`. The caller holds the domain lock.
/// Invariant: bound queues and counters outlive this object, and each is attached to `source` once.
class CompletionPorts {
 public:
  /// `source` names the endpoint in entries of completion queues; `context` is the endpoint's.
  CompletionPorts(ProgressSource& source, void* context) noexcept;

  /// fi_ep_bind(3). `lock` is the endpoint's domain lock; -FI_EINVAL: the queue or counter takes
  /// another one, so it belongs to another domain. Like watch_counter(), these calls throw
  /// std::bad_alloc, and then have had no effect.
  int bind(CompletionQueue& cq, uint64_t flags, const util::DomainLock& lock);
  int bind(Counter& cntr, uint64_t flags, const util::DomainLock& lock);
  /// Lets a thread that waits for the counter drive this endpoint, although no port uses it.
  void watch_counter(Counter& cntr);
  void unwatch_counter(Counter& cntr) noexcept;
  /// Detaches all queues and counters. Entries of the endpoint that are unread are dropped.
  void detach() noexcept;

  /// The source's descriptors may have changed.
  void sources_changed() noexcept;
  /// True if a thread sleeps on one of the queues or counters.
  bool sleeping() const noexcept;
  void wake() noexcept;

  CompletionPort sent;
  CompletionPort received;
  // For one-sided operations: the queues of the two ports above, with counters of their own.
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
