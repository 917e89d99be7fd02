// Operations that wait for a counter: fi_trigger(3).
#include "fabric/deferred.h"

#include <memory>

#include <rdma/fi_errno.h>

#include "fabric/domain.h"
#include "fabric/endpoint_alias.h"
#include "fabric/endpoint_ops.h"
#include "fabric/fid_ops.h"
#include "fabric/wait.h"

namespace erdma::fabric {

namespace {

/// Null: `cntr` is not a counter of the domain.
Counter* counter_of(Domain& domain, fid_cntr* cntr) noexcept {
  if (!cntr || cntr->fid.fclass != FI_CLASS_CNTR) return nullptr;
  Counter& counter = Counter::from(cntr);
  return counter.takes(domain.lock()) ? &counter : nullptr;
}

}  // namespace

int trigger_of(Endpoint& ep, void* context, Trigger& trigger) noexcept {
  if (!ep.options().triggers()) return -FI_EBADFLAGS;
  if (!context) return -FI_EINVAL;
  const auto& condition = *static_cast<const fi_triggered_context*>(context);
  if (enum_value(condition.event_type) != FI_TRIGGER_THRESHOLD) return -FI_ENOSYS;
  trigger.counter = counter_of(ep.domain(), condition.trigger.threshold.cntr);
  if (!trigger.counter) return -FI_EINVAL;
  trigger.threshold = condition.trigger.threshold.threshold;
  return 0;
}

namespace {

int check(const Endpoint&, const protocol::SendArgs& args, const Trigger&) noexcept {
  return args.inject && args.length > kInjectBytes ? -FI_EMSGSIZE : 0;
}
int check(const Endpoint& ep, const protocol::OneSidedArgs& args, const Trigger& trigger) noexcept {
  return check(ep, args.local, trigger);
}
int check(const Endpoint& ep, const protocol::ReceiveArgs& args, const Trigger& trigger) noexcept {
  if (ep.shares_receives()) return -FI_EOPNOTSUPP;
  // A multi-receive buffer takes several messages: no single one of them would complete the work.
  return args.multi && trigger.work ? -FI_ENOSYS : 0;
}

}  // namespace

template <typename Args>
int defer(Endpoint& ep, const Args& args, const Trigger& trigger) noexcept {
  if (!ep.driver().owned()) return -FI_EOPBADSTATE;
  if (const int bad = check(ep, args, trigger)) return bad;
  return abi_call([&] {
    auto work = std::make_unique<DeferredWork>(ep.driver(), args, trigger);
    const util::DataGuard guard(ep.domain().lock());
    ep.domain().works().add(std::move(work));
    return 0;
  });
}
template int defer(Endpoint&, const protocol::SendArgs&, const Trigger&) noexcept;
template int defer(Endpoint&, const protocol::ReceiveArgs&, const Trigger&) noexcept;
template int defer(Endpoint&, const protocol::OneSidedArgs&, const Trigger&) noexcept;

// --- deferred works: FI_QUEUE_WORK and FI_FLUSH_WORK ---------------------------------------------

namespace {

int queue_counter_work(Domain& domain, const fi_deferred_work& work, const Trigger& trigger) {
  if (!work.op.cntr || trigger.completion) return -FI_EINVAL;
  Counter* const target = counter_of(domain, work.op.cntr->cntr);
  if (!target) return -FI_EINVAL;
  const auto kind = enum_value(work.op_type) == FI_OP_CNTR_SET ? DeferredWork::Kind::set
                                                               : DeferredWork::Kind::add;
  auto made = std::make_unique<DeferredWork>(kind, *target, work.op.cntr->value, trigger);
  const util::Guard guard(domain.lock());
  domain.works().add(std::move(made));
  return 0;
}

/// The checks that all operations share. `Op` is fi_op_msg, fi_op_tagged, fi_op_rma and so on.
template <typename Op, typename Queue>
int queue_operation(Domain& domain, const Op* op, Trigger trigger, Queue&& queue) {
  if (!op || !op->ep) return -FI_EINVAL;
  Endpoint* const ep = endpoint_behind(op->ep);
  if (!ep || &ep->domain() != &domain || !ep->driver().engine() || !ep->options().triggers())
    return -FI_EINVAL;
  // The memory would belong to the application on return, before the provider has read it.
  if (op->flags & FI_INJECT) return -FI_ENOSYS;
  trigger.report = (op->flags & FI_COMPLETION) != 0;
  return queue(*ep, trigger);
}

/// `operands` makes an AtomicMessage of what `Op` names.
template <typename Op, typename Operands>
int queue_atomic(Domain& domain, const Op* op, const Trigger& trigger, Operands&& operands) {
  return queue_operation(domain, op, trigger, [&](Endpoint& ep, const Trigger& on) {
    return defer_atomic(ep, operands(*op), op->flags, on);
  });
}

int queue_work(Domain& domain, const fi_deferred_work& work, const Trigger& trigger) {
  const auto& op = work.op;
  switch (const int type = enum_value(work.op_type)) {
    case FI_OP_RECV:
    case FI_OP_SEND:
      return queue_operation(domain, op.msg, trigger, [&](Endpoint& ep, const Trigger& on) {
        return defer_message(ep, op.msg->msg, op.msg->flags, type == FI_OP_RECV, on);
      });
    case FI_OP_TRECV:
    case FI_OP_TSEND:
      return queue_operation(domain, op.tagged, trigger, [&](Endpoint& ep, const Trigger& on) {
        return defer_message(ep, op.tagged->msg, op.tagged->flags, type == FI_OP_TRECV, on);
      });
    case FI_OP_READ:
    case FI_OP_WRITE:
      return queue_operation(domain, op.rma, trigger, [&](Endpoint& ep, const Trigger& on) {
        return defer_rma(ep, op.rma->msg, op.rma->flags, type == FI_OP_READ, on);
      });
    case FI_OP_ATOMIC:
      return queue_atomic(domain, op.atomic, trigger, [](const fi_op_atomic& atomic) {
        return AtomicMessage{atomic.msg, nullptr, nullptr};
      });
    case FI_OP_FETCH_ATOMIC:
      return queue_atomic(domain, op.fetch_atomic, trigger, [](const fi_op_fetch_atomic& atomic) {
        return AtomicMessage{atomic.msg, &atomic.fetch, nullptr};
      });
    case FI_OP_COMPARE_ATOMIC:
      return queue_atomic(domain, op.compare_atomic, trigger,
                          [](const fi_op_compare_atomic& atomic) {
                            return AtomicMessage{atomic.msg, &atomic.fetch, &atomic.compare};
                          });
    case FI_OP_CNTR_SET:
    case FI_OP_CNTR_ADD:
      return queue_counter_work(domain, work, trigger);
    default:
      return -FI_ENOSYS;
  }
}

}  // namespace

int queue_work(Domain& domain, const fi_deferred_work* work) {
  if (!work) return -FI_EINVAL;
  Trigger trigger;
  trigger.counter = counter_of(domain, work->triggering_cntr);
  trigger.threshold = work->threshold;
  trigger.work = work;
  trigger.completion = counter_of(domain, work->completion_cntr);
  if (!trigger.counter || (work->completion_cntr && !trigger.completion)) return -FI_EINVAL;
  return queue_work(domain, *work, trigger);
}

int flush_work(Domain& domain, void* argument) {
  Counter* const counter =
      argument ? counter_of(domain, static_cast<fid_cntr*>(argument)) : nullptr;
  if (argument && !counter) return -FI_EINVAL;
  const util::Guard guard(domain.lock());
  domain.works().cancel_all(counter);
  return 0;
}

}  // namespace erdma::fabric
