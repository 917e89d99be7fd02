#pragma once

#include <cstdint>
#include <vector>

#include "fabric/completion_port.h"
#include "fabric/progress.h"

namespace erdma::fabric {

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
  CompletionPort& of(uint64_t event) noexcept;

  ProgressSource& x_source;
  std::vector<Counter*> x_counters;
};

}  // namespace erdma::fabric
