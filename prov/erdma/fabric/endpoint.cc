#include "fabric/endpoint.h"

#include <sched.h>

#include <algorithm>

#include <rdma/fi_errno.h>

#include "fabric/abi.h"
#include "fabric/auto_progress.h"
#include "fabric/endpoint_ops.h"
#include "fabric/eq.h"
#include "fabric/info.h"
#include "util/clock.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

constexpr size_t kDefaultMinMultiRecv = 64;
/// How long fi_close waits for living peers to take what was promised to them.
constexpr uint64_t kDrainNanoseconds = 1'000'000'000;

}  // namespace

int Endpoint::open(Domain& domain, const fi_info& info, fid_ep** ep, void* context) {
  const int bad = check_info(domain.api_version(), info);
  if (bad != 0) return bad;
  *ep = new Endpoint(domain, info, context);
  return 0;
}

Endpoint::Endpoint(Domain& domain, const fi_info& info, void* context)
    : x_domain(domain),
      x_epoch(util::process_epoch()),
      x_directed((info.caps & FI_DIRECTED_RECV) != 0),
      x_sent(this),
      x_received(this),
      x_name(domain.own_address()),
      x_caps(info.caps),
      x_tx_flags(info.tx_attr ? info.tx_attr->op_flags : 0),
      x_rx_flags(info.rx_attr ? info.rx_attr->op_flags : 0),
      x_inject_size(kInjectBytes),
      x_min_multi_recv(kDefaultMinMultiRecv),
      x_max_msg_size(kMaxMessageBytes) {
  fid.fclass = FI_CLASS_EP;
  fid.context = context;
  fid.ops = &g_endpoint_fid_ops;
  ops = &g_endpoint_ops;
  cm = &g_endpoint_cm_ops;
  msg = &g_msg_ops_disabled;
  tagged = &g_tagged_ops_disabled;
  rma = &g_no_rma_ops;
  atomic = &g_no_atomic_ops;
  collective = &g_no_collective_ops;
  if (info.src_addr) {
    const auto asked = util::SocketAddress::from_sockaddr(info.src_addr, info.src_addrlen);
    if (asked.set()) x_name.set_port(asked.port());
  }
  x_domain.child_opened();
}

Endpoint::~Endpoint() {
  x_domain.child_closed();
}

// --- binding ------------------------------------------------------------------------------------

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

// --- life ---------------------------------------------------------------------------------------

int Endpoint::enable() {
  if (x_engine) return 0;
  const int bound = check_bindings();
  if (bound != 0) return bound;
  util::Result<TransportSet> transports = x_domain.open_transports(x_name);
  if (!transports) return transports.error();
  util::Guard guard(x_domain.lock());
  x_transports = std::move(*transports);
  const Settings& settings = x_domain.settings();
  const protocol::EngineConfig config{x_inject_size, settings.unexpected_bytes, settings.tx_size};
  x_engine = std::make_unique<protocol::Engine>(
      config, *x_av, *this,
      std::vector<transport::Transport*>{x_transports.shm.get(), x_transports.self.get()}, x_sent,
      x_received);
  x_engine->set_min_multi_recv(x_min_multi_recv);
  compute_defaults();
  announce_descriptors();
  msg = &g_msg_ops;
  tagged = &g_tagged_ops;
  if (AutoProgress* driver = x_domain.auto_progress()) driver->add(*this);
  ERDMA_INFO(EP_CTRL, "endpoint %s enabled\n", x_transports.name.to_string().c_str());
  return 0;
}

/// The transports' descriptors exist now: wait objects that were bound before must watch them.
void Endpoint::announce_descriptors() noexcept {
  for (CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq) cq->sources_changed();
  for (Counter* cntr : x_counters) cntr->sources_changed();
}

void Endpoint::compute_defaults() noexcept {
  constexpr uint64_t kDelivered = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
  x_send_defaults.inject = (x_tx_flags & FI_INJECT) != 0;
  x_send_defaults.report = !x_sent.selective || (x_tx_flags & FI_COMPLETION);
  x_send_defaults.until_delivered = (x_tx_flags & kDelivered) != 0;
  x_receive_defaults.report = !x_received.selective || (x_rx_flags & FI_COMPLETION);
  x_receive_defaults.multi = (x_rx_flags & FI_MULTI_RECV) != 0;
}

int Endpoint::close() noexcept {
  if (owned()) {
    if (AutoProgress* driver = x_domain.auto_progress()) driver->remove(*this);
    drain();
  }
  {
    util::Guard guard(x_domain.lock());
    detach();
  }
  delete this;
  return 0;
}

/// Injected messages and acknowledgements were promised: living peers get them.
void Endpoint::drain() noexcept {
  if (!x_engine) return;
  const util::SystemClock clock;
  const uint64_t deadline = clock.now() + kDrainNanoseconds;
  for (;;) {
    {
      util::Guard guard(x_domain.lock());
      if (!x_engine->owes()) break;
      x_engine->progress();
    }
    if (clock.now() > deadline) {
      ERDMA_WARN(EP_CTRL,
                 "endpoint %s closed while peers did not take messages injected for them\n",
                 x_transports.name.to_string().c_str());
      break;
    }
    sched_yield();
  }
}

void Endpoint::detach() noexcept {
  if (x_engine && owned()) {
    x_engine->withdraw_all();
    x_transports.shm->shutdown();
  }
  for (CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq) cq->purge(this);
  if (x_sent.cq) x_sent.cq->detach(*this);
  if (x_received.cq && x_received.cq != x_sent.cq) x_received.cq->detach(*this);
  for (Counter* cntr : x_counters) cntr->detach(*this);
  if (x_av) x_av->detach(*this);
  if (x_eq) x_eq->unbound();
  x_engine.reset();
  x_transports = {};
}

// --- progress -----------------------------------------------------------------------------------

int Endpoint::progress() noexcept {
  if (!x_engine || !owned()) [[unlikely]]
    return 0;
  if (!x_armed) [[likely]]
    return x_engine->progress();
  if (!slept_on()) {
    disarm();
    return x_engine->progress();
  }
  const int steps = x_engine->progress();
  keep_armed();
  return steps;
}

/// Whether some thread relies on the wake-up that arm() promised: it must survive the progress
/// that others make.
bool Endpoint::slept_on() const noexcept {
  if (x_domain.auto_progress()) return true;
  for (const CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq && cq->sleeping()) return true;
  return std::any_of(x_counters.begin(), x_counters.end(),
                     [](const Counter* cntr) { return cntr->sleeping(); });
}

bool Endpoint::arm() noexcept {
  if (!x_engine || !owned()) return true;
  x_armed = true;
  if (x_transports.shm->arm() && x_transports.self->arm()) return true;
  // The promise made to others who sleep is void.
  wake_sleepers();
  return false;
}

/// After something was done while others sleep: what it left undone is theirs to notice.
void Endpoint::keep_armed() noexcept {
  if (!x_transports.shm->arm() || !x_transports.self->arm()) wake_sleepers();
}

void Endpoint::wake_sleepers() noexcept {
  for (CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq && cq->sleeping()) cq->wake();
  for (Counter* cntr : x_counters)
    if (cntr->sleeping()) cntr->wake();
  if (AutoProgress* driver = x_domain.auto_progress()) driver->wake();
}

void Endpoint::disarm() noexcept {
  x_armed = false;
  if (x_engine && owned()) x_transports.shm->disarm();
}

int Endpoint::wait_fds(int* fds, int room) const noexcept {
  if (!x_engine) return 0;
  if (room > 0) fds[0] = x_transports.shm->wait_fd();
  return 1;
}

// --- addresses ----------------------------------------------------------------------------------

void Endpoint::on_av_insert(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept {
  if (x_engine) x_engine->address_inserted(fi_addr, canonical);
}

void Endpoint::on_av_remove(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept {
  if (x_engine) x_engine->address_removed(fi_addr, canonical);
}

util::Result<transport::Link*> Endpoint::route(const util::SocketAddress& address) noexcept {
  if (address == x_transports.name) return x_transports.self->link_to(address);
  if (!x_domain.local_addresses().contains(address)) return -FI_EHOSTUNREACH;
  return x_transports.shm->link_to(address);
}

// --- data ---------------------------------------------------------------------------------------

ssize_t Endpoint::send(const protocol::SendArgs& args) noexcept {
  if (!owned()) [[unlikely]]
    return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const int status = x_engine->post_send(args);
  if (x_armed) [[unlikely]]
    keep_armed();
  return status;
}

ssize_t Endpoint::receive(const protocol::ReceiveArgs& args) noexcept {
  if (!owned()) [[unlikely]]
    return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const int status = x_engine->post_receive(args);
  if (x_armed) [[unlikely]]
    keep_armed();
  return status;
}

ssize_t Endpoint::probe(const protocol::ReceiveArgs& args, protocol::Probe kind) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const int status = x_engine->probe(args, kind);
  if (x_armed) keep_armed();
  return status;
}

ssize_t Endpoint::cancel(void* context) noexcept {
  if (!x_engine || !owned()) return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  return x_engine->cancel(context);
}

}  // namespace erdma::fabric
