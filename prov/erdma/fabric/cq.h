#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "fabric/completion_ring.h"
#include "fabric/pollable.h"
#include "protocol/completion.h"
#include "util/result.h"

namespace erdma::fabric {

/// One completion queue. The calls of fi_cq(3) take the domain lock; endpoints already hold it.
/// Invariant: the queue outlives the endpoints attached to it; fi_close returns -FI_EBUSY while
/// there are any.
class CompletionQueue final : public FidObject<CompletionQueue, fid_cq>, public Pollable {
 public:
  /// The caller has checked `attr`. `wait` is null for FI_WAIT_NONE.
  CompletionQueue(const QueueParent& parent, const fi_cq_attr& attr,
                  std::unique_ptr<WaitObject> wait, void* context);

  // For endpoints, which hold the domain lock.
  /// A new entry, which the caller fills before it releases the lock.
  protocol::CompletionEntry& append(const void* owner) noexcept {
    notify();
    return x_ring.append(owner);
  }
  /// True if append() takes a few stores only: it wakes no thread and allocates no memory.
  bool appends_at_once() const noexcept { return !alert() && !x_ring.full(); }
  void push(const protocol::CompletionEntry& completion, const void* owner) noexcept {
    append(owner) = completion;
  }
  void push_error(const protocol::ErrorCompletion& completion, const void* owner) noexcept {
    x_ring.push_error(completion, owner);
    notify();
  }
  void purge(const void* owner) noexcept { x_ring.purge(owner); }

  // For poll sets, which hold the domain lock.
  /// Makes progress. True if there is something to read.
  bool poll() noexcept {
    if (!x_ring.readable()) progress();
    return x_ring.readable();
  }

  // The calls of fi_cq(3). E is the entry type of the queue's format.
  template <typename E>
  ssize_t read(void* entries, size_t count, fi_addr_t* sources = nullptr) noexcept;
  template <typename E>
  ssize_t read_blocking(void* entries, size_t count, const void* condition, int timeout_ms,
                        fi_addr_t* sources = nullptr) noexcept;
  ssize_t read_error(fi_cq_err_entry* error, uint64_t flags) noexcept;
  int signal() noexcept;
  int close() noexcept;
  /// For a wait set, and fi_trywait(3).
  Readiness prepare_wait() noexcept;

 private:
  template <typename E>
  ssize_t read_locked(void* entries, size_t count, fi_addr_t* sources) noexcept;
  ssize_t probe() noexcept;

  CompletionRing x_ring;
  const uint32_t x_api_version;
  const size_t x_max_threshold;  ///< entries; 1 without FI_CQ_COND_THRESHOLD
};

/// Makes a completion queue; for open_cq() and tests.
util::Result<CompletionQueue*> make_cq(const QueueParent& parent, const fi_cq_attr* attr,
                                       void* context);

/// fi_cq_open(3).
int open_cq(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) noexcept;

}  // namespace erdma::fabric
