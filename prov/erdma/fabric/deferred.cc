// Operations that wait for a counter: fi_trigger(3).
#include "fabric/deferred.h"

#include <memory>
#include <new>

#include <rdma/fi_errno.h>
#include <rdma/fi_trigger.h>

#include "fabric/abi.h"
#include "fabric/endpoint_ops.h"
#include "fabric/wait.h"

namespace erdma::fabric {

int trigger_of(Endpoint& ep, void* context, Trigger& trigger) noexcept {
  if (!ep.options().triggers()) return -FI_EBADFLAGS;
  if (!context) return -FI_EINVAL;
  const auto& condition = *static_cast<const fi_triggered_context*>(context);
  if (enum_value(condition.event_type) != FI_TRIGGER_THRESHOLD) return -FI_ENOSYS;
  fid_cntr* const cntr = condition.trigger.threshold.cntr;
  if (!cntr || cntr->fid.fclass != FI_CLASS_CNTR) return -FI_EINVAL;
  if (!Counter::from(cntr).takes(ep.domain().lock())) return -FI_EINVAL;
  trigger.counter = &Counter::from(cntr);
  trigger.threshold = condition.trigger.threshold.threshold;
  return 0;
}

namespace {

template <typename Args>
int queue(Endpoint& ep, const Args& args, const Trigger& trigger) noexcept {
  return abi_call([&] {
    auto work = std::make_unique<Work>(ep.driver(), args, trigger);
    WorkQueue& works = ep.domain().works();
    const util::Guard guard(ep.domain().lock());
    works.add(std::move(work));
    return 0;
  });
}

}  // namespace

int defer(Endpoint& ep, const protocol::SendArgs& args, const Trigger& trigger) noexcept {
  if (!ep.driver().owned()) return -FI_EOPBADSTATE;
  if (args.inject && args.length > kInjectBytes) return -FI_EMSGSIZE;
  return queue(ep, args, trigger);
}

int defer(Endpoint& ep, const protocol::ReceiveArgs& args, const Trigger& trigger) noexcept {
  if (!ep.driver().owned()) return -FI_EOPBADSTATE;
  if (ep.shares_receives()) return -FI_EOPNOTSUPP;
  // When would the counter count, with one buffer for several messages?
  if (args.multi && trigger.work) return -FI_ENOSYS;
  return queue(ep, args, trigger);
}

int defer(Endpoint& ep, const protocol::OneSidedArgs& args, const Trigger& trigger) noexcept {
  if (!ep.driver().owned()) return -FI_EOPBADSTATE;
  if (args.local.inject && args.local.length > kInjectBytes) return -FI_EMSGSIZE;
  return queue(ep, args, trigger);
}

}  // namespace erdma::fabric
