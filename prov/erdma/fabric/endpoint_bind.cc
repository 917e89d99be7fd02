// What is bound to an endpoint: fi_ep_bind(3).
#include <algorithm>

#include <rdma/fi_errno.h>

#include "fabric/endpoint.h"
#include "fabric/eq.h"
#include "fabric/shared_receive.h"
#include "hmem/cuda.h"
#include "util/log.h"

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
    case FI_CLASS_SRX_CTX:
      return flags ? -FI_EBADFLAGS : bind_shared(SharedReceive::from(object));
    case FI_CLASS_STX_CTX:
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
    x_sent.cq = x_reads.cq = x_writes.cq = &cq;
    x_sent.selective = x_reads.selective = x_writes.selective = selective;
  }
  if (flags & FI_RECV) {
    x_received.cq = x_remote_writes.cq = &cq;
    x_received.selective = selective;
  }
  return 0;
}

namespace {

constexpr uint64_t kEvents[] = {FI_SEND,  FI_RECV,        FI_READ,
                                FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE};
constexpr uint64_t kAllEvents =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

}  // namespace

CompletionPort& Endpoint::port_of(uint64_t event) noexcept {
  switch (event) {
    case FI_SEND:
      return x_sent;
    case FI_RECV:
      return x_received;
    case FI_READ:
      return x_reads;
    case FI_WRITE:
      return x_writes;
    case FI_REMOTE_READ:
      return x_remote_reads;
    default:
      return x_remote_writes;
  }
}

/// Counters may come after fi_enable.
int Endpoint::bind_counter(Counter& cntr, uint64_t flags) {
  if (flags & ~kAllEvents) return -FI_EBADFLAGS;
  if (!flags || !cntr.takes(x_domain.lock())) return -FI_EINVAL;
  util::Guard guard(x_domain.lock());
  for (const uint64_t event : kEvents)
    if ((flags & event) && port_of(event).cntr) return -FI_EINVAL;
  attach_counter(cntr);
  for (const uint64_t event : kEvents)
    if (flags & event) port_of(event).cntr = &cntr;
  // What peers do directly would not be counted.
  if (x_engine && flags & (FI_REMOTE_READ | FI_REMOTE_WRITE)) x_engine->grants().revoke_all();
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

int Endpoint::bind_shared(SharedReceive& shared) {
  if (x_shared || !shared.takes(x_domain)) return -FI_EINVAL;
  if (shared.cuda() && shared.cuda() != x_devices) {
    ERDMA_WARN(EP_CTRL,
               "a shared receive context with FI_HMEM takes only endpoints with it that may call "
               "CUDA\n");
    return -FI_EINVAL;
  }
  util::Guard guard(x_domain.lock());
  x_shared = &shared;
  // Receives outlive the endpoint that they complete at, and so do their completions.
  x_received.owner = &shared;
  x_shared->bound();
  return 0;
}

int Endpoint::check_bindings() const noexcept {
  if (!x_av) return -FI_ENOAV;
  if (x_wants_shared && !x_shared) return -FI_ENORX;
  const bool messages = (x_caps & (FI_MSG | FI_TAGGED)) || !(x_caps & (FI_RMA | FI_ATOMIC));
  const bool both = messages && !(x_caps & (FI_SEND | FI_RECV));
  const bool sends = (x_caps & (FI_SEND | FI_READ | FI_WRITE)) || both;
  const bool receives = (x_caps & FI_RECV) || both;
  if (sends && !x_sent.cq && !x_sent.cntr && !x_reads.cntr && !x_writes.cntr) return -FI_ENOCQ;
  if (receives && !x_received.cq && !x_received.cntr) return -FI_ENOCQ;
  return 0;
}

}  // namespace erdma::fabric
