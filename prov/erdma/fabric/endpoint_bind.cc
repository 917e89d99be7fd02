// What is bound to an endpoint: fi_ep_bind(3).
#include <algorithm>

#include <rdma/fi_errno.h>

#include "fabric/endpoint.h"
#include "fabric/eq.h"

namespace erdma::fabric {

int Endpoint::bind(fid_t object, uint64_t flags) {
  if (!object) return -FI_EINVAL;
  if (x_engine && object->fclass != FI_CLASS_CNTR) return -FI_EOPBADSTATE;
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return bind_cq(CompletionQueue::from(object), flags);
    case FI_CLASS_CNTR:
      return bind_counter(Counter::from(object), flags);
    case FI_CLASS_AV:
      return bind_av(AddressVector::from(object));
    case FI_CLASS_EQ:
      return bind_eq(EventQueue::from(object));
    case FI_CLASS_STX_CTX:
    case FI_CLASS_SRX_CTX:
      return -FI_ENOSYS;
    default:
      return -FI_EINVAL;
  }
}

int Endpoint::bind_cq(CompletionQueue& cq, uint64_t flags) {
  constexpr uint64_t kDirections = FI_TRANSMIT | FI_RECV;
  if (flags & ~(kDirections | FI_SELECTIVE_COMPLETION)) return -FI_EBADFLAGS;
  if (!(flags & kDirections) || !cq.takes(x_domain.lock())) return -FI_EINVAL;
  if (((flags & FI_TRANSMIT) && x_sent.cq) || ((flags & FI_RECV) && x_received.cq))
    return -FI_EINVAL;
  const bool known = x_sent.cq == &cq || x_received.cq == &cq;
  const bool selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
  util::Guard guard(x_domain.lock());
  if (!known) cq.attach(*this);
  if (flags & FI_TRANSMIT) {
    x_sent.cq = &cq;
    x_sent.selective = selective;
  }
  if (flags & FI_RECV) {
    x_received.cq = &cq;
    x_received.selective = selective;
  }
  return 0;
}

/// Counters may come after fi_enable. Without one-sided operations only FI_SEND and FI_RECV ever
/// count; the other events are accepted and stay at zero.
int Endpoint::bind_counter(Counter& cntr, uint64_t flags) {
  constexpr uint64_t kEvents =
      FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if (flags & ~kEvents) return -FI_EBADFLAGS;
  if (!(flags & kEvents) || !cntr.takes(x_domain.lock())) return -FI_EINVAL;
  util::Guard guard(x_domain.lock());
  if (((flags & FI_SEND) && x_sent.cntr) || ((flags & FI_RECV) && x_received.cntr))
    return -FI_EINVAL;
  attach_counter(cntr);
  if (flags & FI_SEND) x_sent.cntr = &cntr;
  if (flags & FI_RECV) x_received.cntr = &cntr;
  return 0;
}

void Endpoint::attach_counter(Counter& cntr) {
  if (std::find(x_counters.begin(), x_counters.end(), &cntr) != x_counters.end()) return;
  x_counters.push_back(&cntr);
  cntr.attach(*this);
}

int Endpoint::bind_av(AddressVector& av) {
  if (x_av || !av.takes(x_domain.lock())) return -FI_EINVAL;
  util::Guard guard(x_domain.lock());
  av.attach(*this);
  x_av = &av;
  return 0;
}

int Endpoint::bind_eq(EventQueue& eq) {
  if (x_eq) return -FI_EINVAL;
  x_eq = &eq;
  x_eq->bound();
  return 0;
}

int Endpoint::check_bindings() const noexcept {
  if (!x_av) return -FI_ENOAV;
  const bool sends = (x_caps & FI_SEND) || !(x_caps & (FI_SEND | FI_RECV));
  const bool receives = (x_caps & FI_RECV) || !(x_caps & (FI_SEND | FI_RECV));
  if (sends && !x_sent.cq && !x_sent.cntr) return -FI_ENOCQ;
  if (receives && !x_received.cq && !x_received.cntr) return -FI_ENOCQ;
  return 0;
}

}  // namespace erdma::fabric
