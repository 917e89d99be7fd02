#pragma once

#include <cstdint>

#include <rdma/fi_atomic.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_trigger.h>

#include "fabric/endpoint.h"
#include "fabric/work_queue.h"

/// Deferred forms of the data transfers that take a structure. They check their arguments like
/// fi_sendmsg(3) and its relatives, but queue the operation instead of posting it. `flags` are
/// those of the call, without FI_TRIGGER.
namespace erdma::fabric {

/// `Message` is fi_msg or fi_msg_tagged.
template <typename Message>
[[gnu::noinline]] int defer_message(Endpoint& ep, const Message& msg, uint64_t flags, bool receive,
                                    const Trigger& trigger) noexcept;
int defer_rma(Endpoint& ep, const fi_msg_rma& msg, uint64_t flags, bool read,
              const Trigger& trigger) noexcept;

/// An atomic operation. `fetch` and `compare` are null if its form has none.
struct AtomicMessage {
  const fi_msg_atomic& msg;
  const fi_msg_fetch* fetch;
  const fi_msg_compare* compare;
};
int defer_atomic(Endpoint& ep, const AtomicMessage& atomic, uint64_t flags,
                 const Trigger& trigger) noexcept;

/// Queues an operation whose arguments have been checked.
template <typename Args>
int defer(Endpoint& ep, const Args& args, const Trigger& trigger) noexcept;

// fi_control(3) of a domain. The argument of FI_FLUSH_WORK is a counter, or null.
int queue_work(Domain& domain, const fi_deferred_work* work);
int flush_work(Domain& domain, void* counter);

/// Reads the trigger condition of an operation with FI_TRIGGER from its context
/// (fi_triggered_context).
int trigger_of(Endpoint& ep, void* context, Trigger& trigger) noexcept;

/// An operation with FI_TRIGGER: calls queue(trigger) with the condition in its context.
template <typename Defer>
ssize_t with_trigger(Endpoint& ep, void* context, Defer&& queue) noexcept {
  Trigger trigger;
  int status = trigger_of(ep, context, trigger);
  if (status == 0) status = queue(trigger);
  return status == 0 ? 0 : refused(ep, status);
}
template <typename Args>
ssize_t defer_by_context(Endpoint& ep, void* context, const Args& args) noexcept {
  return with_trigger(ep, context,
                      [&](const Trigger& trigger) { return defer(ep, args, trigger); });
}

}  // namespace erdma::fabric
