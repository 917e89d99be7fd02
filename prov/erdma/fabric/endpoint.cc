#include "fabric/endpoint.h"

#include <sched.h>

#include <algorithm>

#include <rdma/fi_errno.h>

#include "fabric/abi.h"
#include "fabric/auto_progress.h"
#include "fabric/endpoint_ops.h"
#include "fabric/endpoint_summary.h"
#include "fabric/eq.h"
#include "fabric/info.h"
#include "fabric/shared_receive.h"
#include "hmem/cuda.h"
#include "util/clock.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

/// How long fi_close waits for living peers to take what was promised to them.
constexpr uint64_t kDrainNanoseconds = 1'000'000'000;

}  // namespace

int Endpoint::open(Domain& domain, const fi_info& info, fid_ep** ep, void* context) {
  const int bad = check_info(domain.api_version(), info);
  if (bad != 0) return bad;
  std::unique_ptr<Endpoint> made(new Endpoint(domain, info, context));
  // The application may have changed what fi_getinfo() put there.
  if (const int rc = info.src_addr ? made->take_port(info.src_addr, info.src_addrlen) : 0) {
    ERDMA_WARN(EP_CTRL, "cannot open an endpoint: src_addr is no address of this domain: %s\n",
               fi_strerror(-rc));
    return rc;
  }
  *ep = made.release();
  return 0;
}

Endpoint::Endpoint(Domain& domain, const fi_info& info, void* context)
    : x_domain(domain),
      x_epoch(util::process_epoch()),
      x_sent(this),
      x_received(this),
      x_reads(this),
      x_writes(this),
      x_remote_reads(this),
      x_remote_writes(this),
      x_one_sided{x_transports.name,
                  domain.memory_regions().of_endpoint(domain.cuda_for(info.caps) != nullptr),
                  x_reads,
                  x_writes,
                  x_remote_reads,
                  x_remote_writes},
      x_name(domain.own_address()),
      x_wants_shared(info.ep_attr && info.ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT),
      x_caps(info.caps),
      x_tx_flags(info.tx_attr ? info.tx_attr->op_flags : 0),
      x_rx_flags(info.rx_attr ? info.rx_attr->op_flags : 0),
      x_inject_size(kInjectBytes),
      x_min_multi_recv(kDefaultMinMultiRecv),
      x_max_msg_size(kMaxMessageBytes),
      x_shared_memory(domain.settings().shm != Switch::off),
      x_key(domain.key_of(info)),
      x_devices(domain.cuda_for(info.caps)) {
  fid.fclass = FI_CLASS_EP;
  fid.context = context;
  for (CompletionPort* port : {&x_sent, &x_reads, &x_writes}) port->endpoint_context = context;
  fid.ops = &g_fid_ops<Endpoint>;
  ops = &g_endpoint_ops;
  cm = &g_endpoint_cm_ops;
  refuse_calls(*this);
  x_domain.child_opened();
}

Endpoint::~Endpoint() {
  x_domain.child_closed();
}

// --- life ---------------------------------------------------------------------------------------

int Endpoint::enable() {
  if (x_engine) return 0;
  const int bound = check_bindings();
  if (bound != 0) return bound;
  const TransportRequest request{x_name, x_shared_memory && x_cuda_permitted, x_key, x_devices};
  util::Result<TransportSet> transports = x_domain.open_transports(request);
  if (!transports) return transports.error();
  util::Guard guard(x_domain.lock());
  if (const int bad = x_shared ? x_shared->add(*this, *x_av) : 0) return bad;
  x_domain.memory_regions().add(*this);
  x_domain.works().add(*this);
  x_transports = std::move(*transports);
  const Settings& settings = x_domain.settings();
  const protocol::EngineConfig config{x_inject_size, settings.unexpected_bytes, settings.tx_size,
                                      x_devices};
  x_engine =
      std::make_unique<protocol::Engine>(config, *x_av, *this, x_transports.pointers(), x_sent,
                                         x_received, x_shared ? &x_shared->receives() : nullptr);
  x_engine->set_min_multi_recv(x_min_multi_recv);
  x_engine->enable_one_sided(x_one_sided);
  compute_defaults();
  announce_descriptors();
  install_calls(*this, calls());
  for (EndpointAlias* alias : x_aliases) alias->enable(calls());
  if (AutoProgress* driver = x_domain.auto_progress()) driver->add(*this);
  ERDMA_ANNOUNCE(EP_CTRL, "%s\n", summarize(x_domain.describe(request, x_transports)).c_str());
  return 0;
}

CallsOn Endpoint::calls() const noexcept {
  return {false, x_devices != nullptr, x_shared != nullptr};
}

/// The transports' descriptors exist now: wait objects that were bound before must watch them.
void Endpoint::announce_descriptors() noexcept {
  for (CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq) cq->sources_changed();
  for (Counter* cntr : x_counters) cntr->sources_changed();
}

void Endpoint::compute_defaults() noexcept {
  x_send_defaults = {x_tx_flags, x_sent.selective};
  x_receive_defaults = {x_caps, x_rx_flags, x_received.selective};
  x_received.unasked = x_shared && !x_received.selective;
}

int Endpoint::close() noexcept {
  {
    util::Guard guard(x_domain.lock());
    if (!x_aliases.empty()) return -FI_EBUSY;
  }
  if (owned()) {
    if (AutoProgress* driver = x_domain.auto_progress()) driver->remove(*this);
    drain();
  }
  {
    util::Guard guard(x_domain.lock());
    detach();
  }
  // Nobody else finds this endpoint any more: what may take a while holds up no other.
  if (x_engine && owned()) x_transports.shutdown();
  x_engine.reset();
  x_transports = {};
  delete this;
  return 0;
}

/// Injected messages and acknowledgements were promised: living peers get them. So do they what is
/// one packet, as it would have left at once over a connection that was there; nobody promised
/// that.
void Endpoint::drain() noexcept {
  if (!x_engine) return;
  const util::SystemClock clock;
  const uint64_t deadline = clock.now() + kDrainNanoseconds;
  for (;;) {
    bool owes = false;
    {
      util::Guard guard(x_domain.lock());
      owes = x_engine->owes();
      if (!owes && !x_engine->has_packets()) break;
      x_engine->progress();
      worked();
    }
    if (clock.now() > deadline) {
      if (owes)
        ERDMA_NOTICE(lost_messages, EP_CTRL,
                     "endpoint %s closed while peers did not take messages injected for them\n",
                     x_transports.name.to_string().c_str());
      break;
    }
    sched_yield();
  }
}

void Endpoint::detach() noexcept {
  if (x_engine && owned()) x_engine->withdraw_all();
  if (x_shared) leave_shared();
  x_domain.works().remove(*this);
  x_domain.memory_regions().remove(*this);
  for (CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq) cq->purge(this);
  if (x_sent.cq) x_sent.cq->detach(*this);
  if (x_received.cq && x_received.cq != x_sent.cq) x_received.cq->detach(*this);
  for (Counter* cntr : x_counters) cntr->detach(*this);
  if (x_av) x_av->detach(*this);
  if (x_eq) x_eq->unbound();
}

/// What its messages were to fill is cancelled where the context goes on; if it does not, here.
void Endpoint::leave_shared() noexcept {
  const bool last = x_engine && x_shared->receives().engines() == 1;
  if (!last) x_shared->remove(*this);
  if (x_engine) x_engine->leave_shared();
  x_shared->remove(*this);
  x_shared->unbound();
}

// --- addresses ----------------------------------------------------------------------------------

void Endpoint::on_av_insert(uint64_t, const util::SocketAddress& canonical) noexcept {
  if (!x_engine) return;
  x_engine->peers().address_inserted(canonical);
  told();
}

void Endpoint::on_av_remove(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept {
  if (!x_engine) return;
  x_engine->peers().address_removed(fi_addr, canonical);
  told();
}

util::Result<transport::Link*> Endpoint::route(const util::SocketAddress& address) noexcept {
  const TransportSet& to = x_transports;
  // The NIC's way where there may be device memory: a read from oneself flushes what it wrote.
  if (to.self && address == to.name)
    return (x_devices && to.nic ? to.nic : to.self)->link_to(address);
  if (to.shm && x_domain.local_addresses().contains(address)) return to.shm->link_to(address);
  if (to.nic) return to.nic->link_to(address);
  return -FI_EHOSTUNREACH;
}

/// A local peer whose socket is not there or is another user's is reached through the NIC. What it
/// says of a peer that closed stands.
transport::Link* Endpoint::detour(const util::SocketAddress& address, int status) noexcept {
  if (!x_transports.nic || status == -FI_ESHUTDOWN) return nullptr;
  util::Result<transport::Link*> link = x_transports.nic->link_to(address);
  if (!link) return nullptr;
  if (!x_detour_logged)
    ERDMA_NOTICE(
        local_path, EP_CTRL,
        "%s cannot be reached through shared memory (%s): it is reached through the NIC, as "
        "will be others of which this is true. Local peers need the same user and network "
        "namespace, and FI_ERDMA_SHM to be the same\n",
        address.to_string().c_str(), fi_strerror(-status));
  x_detour_logged = true;
  return *link;
}

// --- memory regions -----------------------------------------------------------------------------

void Endpoint::abandon(const protocol::Region& region) noexcept {
  if (!x_engine || !owned()) return;
  x_engine->abandon(region);
  told();
}

void Endpoint::revoke(uint64_t key) noexcept {
  if (!x_engine || !owned()) return;
  x_engine->grants().revoke(key);
  told();
}

void Endpoint::stop_waiting(uint64_t key, bool all) noexcept {
  if (!x_engine || !owned()) return;
  x_engine->grants().stop_waiting(key, all);
  told();
}

void Endpoint::take_back(Counter& cntr) noexcept {
  for (const CompletionPort* port :
       {&x_sent, &x_received, &x_reads, &x_writes, &x_remote_reads, &x_remote_writes})
    if (port->cntr == &cntr) return;
  std::erase(x_counters, &cntr);
  cntr.detach(*this);
}

// --- data ---------------------------------------------------------------------------------------

ssize_t Endpoint::probe(const protocol::ReceiveArgs& args, protocol::Probe kind) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const int status = x_engine->probe(args, kind);
  worked();
  return status;
}

ssize_t Endpoint::cancel(void* context) noexcept {
  if (!x_engine || !owned()) return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const bool found = x_engine->cancel(context) == 0 || x_domain.works().cancel(*this, context);
  worked();
  return found ? 0 : -FI_ENOENT;
}

}  // namespace erdma::fabric
