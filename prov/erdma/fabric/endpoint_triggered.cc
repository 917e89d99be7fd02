// Operations that wait for a counter: fi_trigger(3).
#include <memory>
#include <new>

#include <rdma/fi_errno.h>
#include <rdma/fi_trigger.h>

#include "fabric/abi.h"
#include "fabric/endpoint.h"
#include "fabric/wait.h"
#include "fabric/work_queue.h"

namespace erdma::fabric {

int Endpoint::trigger_of(void* context, Trigger& trigger) noexcept {
  if (!(x_caps & FI_TRIGGER)) return -FI_EBADFLAGS;
  if (!context) return -FI_EINVAL;
  const auto& condition = *static_cast<const fi_triggered_context*>(context);
  if (enum_value(condition.event_type) != FI_TRIGGER_THRESHOLD) return -FI_ENOSYS;
  fid_cntr* const cntr = condition.trigger.threshold.cntr;
  if (!cntr || cntr->fid.fclass != FI_CLASS_CNTR) return -FI_EINVAL;
  if (!Counter::from(cntr).takes(x_domain.lock())) return -FI_EINVAL;
  trigger.counter = &Counter::from(cntr);
  trigger.threshold = condition.trigger.threshold.threshold;
  return 0;
}

namespace {

template <typename Args>
int queue(Endpoint& ep, const Args& args, const Trigger& trigger) noexcept {
  return abi_call([&] {
    auto work = std::make_unique<Work>(ep, args, trigger);
    WorkQueue& works = ep.domain().works();
    const util::Guard guard(works.lock());
    works.add(std::move(work));
    return 0;
  });
}

}  // namespace

int Endpoint::defer(const protocol::SendArgs& args, const Trigger& trigger) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  if (args.inject && args.length > x_inject_size) return -FI_EMSGSIZE;
  return queue(*this, args, trigger);
}

int Endpoint::defer(const protocol::ReceiveArgs& args, const Trigger& trigger) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  if (x_shared) return -FI_EOPNOTSUPP;
  // When would the counter count, with one buffer for several messages?
  if (args.multi && trigger.work) return -FI_ENOSYS;
  return queue(*this, args, trigger);
}

int Endpoint::defer(const protocol::OneSidedArgs& args, const Trigger& trigger) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  if (args.local.inject && args.local.length > x_inject_size) return -FI_EMSGSIZE;
  return queue(*this, args, trigger);
}

int Endpoint::fire(Work& work) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  const bool deferred = work.trigger.work != nullptr;
  int status = 0;
  switch (work.kind) {
    case Work::Kind::send:
      status = deferred ? x_engine->post_send(work.operation.local, work)
                        : x_engine->post_send(work.operation.local);
      break;
    case Work::Kind::receive:
      status = deferred ? x_engine->post_receive(work.receive, work)
                        : x_engine->post_receive(work.receive);
      break;
    default:
      status = deferred ? x_engine->post_one_sided(work.operation, &work)
                        : x_engine->post_one_sided(work.operation);
  }
  worked();
  return status;
}

CompletionPort& Endpoint::port_of(const Work& work) noexcept {
  if (work.kind == Work::Kind::send) return x_sent;
  if (work.kind == Work::Kind::receive) return x_received;
  return work.reads() ? x_reads : x_writes;
}

}  // namespace erdma::fabric
