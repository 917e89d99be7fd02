#include "fabric/endpoint.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <rdma/fi_errno.h>

#include "fabric/auto_progress.h"
#include "fabric/endpoint_ops.h"
#include "fabric/endpoint_summary.h"
#include "fabric/eq.h"
#include "fabric/info.h"
#include "fabric/shared_receive.h"
#include "hmem/cuda.h"
#include "util/clock.h"
#include "util/lacks.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

/// How long fi_close waits for living peers to take the messages that it must deliver.
constexpr uint64_t kDrainNanoseconds = 1'000'000'000;

/// Executes the one-sided operations of peers that have arrived, as a NIC would have done at once,
/// and sends what is still queued to living peers. Injected messages and acknowledgements must be
/// delivered. Other queued packets are sent too, as they would have been at once over an
/// established connection, but losing them is no error.
void drain(EndpointDriver& driver, util::DomainLock& lock) noexcept {
  protocol::Engine* const engine = driver.engine();
  if (!engine) return;
  const util::SystemClock clock;
  const uint64_t deadline = clock.now() + kDrainNanoseconds;
  for (int polls = 0;; ++polls) {
    bool has_injected = false;
    {
      const util::Guard guard(lock);
      const bool arrives = engine->progress_without_messages() > 0 && polls < kRestPolls;
      driver.worked();
      has_injected = engine->has_injected();
      if (!arrives && !has_injected && !engine->has_packets()) break;
    }
    if (clock.now() > deadline) {
      if (has_injected)
        ERDMA_NOTICE(lost_messages, EP_CTRL,
                     "endpoint %s closed while peers did not take messages injected for them",
                     driver.transports().name.to_string().c_str());
      break;
    }
    sched_yield();
  }
}

}  // namespace

int Endpoint::open(Domain& domain, const fi_info& info, fid_ep** ep, void* context) {
  const int bad = check_info(domain.api_version(), info);
  if (bad != 0) return bad;
  std::unique_ptr<Endpoint> made(new Endpoint(domain, info, context));
  // The application may have changed what fi_getinfo() put there.
  if (const int rc = info.src_addr ? made->take_port(info.src_addr, info.src_addrlen) : 0) {
    ERDMA_WARN(EP_CTRL, "cannot open an endpoint: src_addr does not belong to this domain: %s\n",
               fi_strerror(-rc));
    return rc;
  }
  *ep = made.release();
  return 0;
}

Endpoint::Endpoint(Domain& domain, const fi_info& info, void* context)
    : FidObject(FI_CLASS_EP, context, &domain.children()),
      x_domain(domain),
      x_statistics(domain.settings().stat != Switch::off),
      x_driver(domain, context, domain.cuda_for(info.caps) != nullptr),
      x_options(domain, info),
      x_name(domain.own_address()),
      x_key(domain.key_of(info)) {
  ops = &g_endpoint_ops;
  cm = &g_endpoint_cm_ops;
  refuse_calls(*this, !x_options.devices());
}

// --- bindings -----------------------------------------------------------------------------------

int Endpoint::bind(fid_t object, uint64_t flags) {
  if (!object) return -FI_EINVAL;
  if (x_driver.engine() && object->fclass != FI_CLASS_CNTR) return -FI_EOPBADSTATE;
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
  const util::Guard guard(x_domain.lock());
  return x_driver.ports().bind(cq, flags, x_domain.lock());
}

/// Counters may be bound after fi_enable.
int Endpoint::bind_counter(Counter& cntr, uint64_t flags) {
  const util::Guard guard(x_domain.lock());
  if (const int bad = x_driver.ports().bind(cntr, flags, x_domain.lock())) return bad;
  // Direct accesses by peers would not be counted.
  protocol::Engine* const engine = x_driver.engine();
  if (engine && flags & (FI_REMOTE_READ | FI_REMOTE_WRITE)) engine->grants().revoke_all();
  return 0;
}

int Endpoint::bind_av(AddressVector& av) {
  if (x_av || !av.takes(x_domain.lock())) return -FI_EINVAL;
  const util::Guard guard(x_domain.lock());
  av.attach(x_driver);
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
  if (shared.cuda() && shared.cuda() != x_options.devices()) {
    ERDMA_WARN(EP_CTRL,
               "a shared receive context with FI_HMEM takes only endpoints that have FI_HMEM and "
               "may call CUDA\n");
    return -FI_EINVAL;
  }
  const util::Guard guard(x_domain.lock());
  x_shared = &shared;
  x_options.receives_are_shared();
  // Receives outlive the endpoint at which they complete, so its close must not purge their
  // entries.
  x_driver.ports().received.owner = &shared;
  x_shared->bound();
  return 0;
}

int Endpoint::check_bindings() noexcept {
  if (!x_av) return -FI_ENOAV;
  if (x_options.wants_shared_receives() && !x_shared) return -FI_ENORX;
  const CompletionPorts& ports = x_driver.ports();
  const uint64_t caps = x_options.caps();
  const bool messages = (caps & (FI_MSG | FI_TAGGED)) || !(caps & (FI_RMA | FI_ATOMIC));
  const bool both = messages && !(caps & (FI_SEND | FI_RECV));
  const bool sends = (caps & (FI_SEND | FI_READ | FI_WRITE)) || both;
  const bool receives = (caps & FI_RECV) || both;
  if (sends && !ports.sent.cq && !ports.sent.cntr && !ports.reads.cntr && !ports.writes.cntr)
    return -FI_ENOCQ;
  if (receives && !ports.received.cq && !ports.received.cntr) return -FI_ENOCQ;
  return 0;
}

// --- enable and close ---------------------------------------------------------------------------

int Endpoint::enable() {
  if (const int refused = x_domain.check_owned()) return refused;
  if (x_driver.engine()) return 0;
  const int bound = check_bindings();
  if (bound != 0) return bound;
  hmem::DeviceMemory* const devices = x_options.devices();
  const TransportRequest request{x_name, x_options.shared_memory(), x_key, devices, x_statistics};
  util::Result<TransportSet> transports = x_domain.transports().open(request);
  if (!transports && (transports.error() == -EMFILE || transports.error() == -ENFILE))
    return util::refused_descriptor("an endpoint", -transports.error());
  if (!transports) return transports.error();
  const EndpointFacts facts = x_domain.transports().describe(request, *transports);
  const Settings& settings = x_domain.settings();
  // What may fail for lack of memory comes first, because the steps below are not undone.
  const std::vector<ShownSetting> shown =
      x_statistics.shows() ? show_settings(settings) : std::vector<ShownSetting>();
  const std::string summary = summarize(facts);
  AutoProgress* const progress = x_domain.auto_progress();
  const util::Guard guard(x_domain.lock());
  if (progress) progress->expect_one_more();
  if (const int bad = x_shared ? x_shared->add(x_driver, *x_av) : 0) return bad;
  x_driver.start({kInjectBytes, settings.unexpected_bytes, settings.tx_size, devices, &x_statistics,
                  settings.peer_loss == PeerLoss::all},
                 std::move(*transports), *x_av, x_shared ? &x_shared->receives() : nullptr);
  CompletionPorts& ports = x_driver.ports();
  x_options.enable(*x_driver.engine(), ports.sent.selective, ports.received.selective);
  ports.received.unasked = x_shared && !ports.received.selective;
  const CallsOn calls{false, devices != nullptr, x_shared != nullptr};
  install_calls(*this, calls);
  x_aliases.enable(calls);
  if (progress) progress->add(x_driver);
  x_statistics.enabled(facts, shown);
  ERDMA_ANNOUNCE(EP_CTRL, "%s\n", summary.c_str());
  return 0;
}

int Endpoint::control(int command, void* argument) {
  switch (command) {
    case FI_ENABLE:
      return enable();
    case FI_GETOPSFLAG:
    case FI_SETOPSFLAG:
      return argument
                 ? x_options.op_flags(static_cast<uint64_t*>(argument), command == FI_SETOPSFLAG)
                 : -FI_EINVAL;
    case FI_ALIAS:
      return argument ? x_aliases.open(*this, *static_cast<struct fi_alias*>(argument))
                      : -FI_EINVAL;
    default:
      return -FI_ENOSYS;
  }
}

int Endpoint::close() noexcept {
  if (const util::Guard guard(x_domain.lock()); !x_aliases.empty()) return -FI_EBUSY;
  if (x_driver.owned()) {
    if (AutoProgress* progress = x_domain.auto_progress()) progress->remove(x_driver);
    drain(x_driver, x_domain.lock());
  }
  {
    Detached rest = detach();
    rest.end_transports();
    report_end(rest);
  }
  delete this;
  return 0;
}

/// No message of this endpoint matches a receive any more, and nothing else calls its engine.
Detached Endpoint::detach() noexcept {
  const util::Guard guard(x_domain.lock());
  if (protocol::Engine* const engine = x_driver.engine()) engine->detach(x_driver.owned());
  if (x_shared) x_shared->remove(x_driver);
  if (x_av) x_av->detach(x_driver);
  return x_driver.detach();
}

/// Receives of the shared receive context that messages of this endpoint were filling are
/// cancelled: their errors appear at another endpoint of the context or, if there is none, at this
/// one. The application may reuse their buffers at once, so the transports have ended before.
void Endpoint::report_end(Detached& rest) noexcept {
  const util::Guard guard(x_domain.lock());
  CompletionPorts& ports = x_driver.ports();
  if (x_shared && rest.engine) rest.engine->cancel_deliveries(x_shared->sink_or(ports.received));
  ports.detach();
  if (x_shared) {
    // Deferred works of other endpoints may be due because of those failures.
    x_shared->keep_armed();
    x_shared->unbound();
  }
  if (x_eq) x_eq->unbound();
}

// --- name, cancel -------------------------------------------------------------------------------

int Endpoint::get_name(void* address, size_t* length) noexcept {
  const bool enabled = x_driver.engine();
  if (!enabled && !x_name.port()) return -FI_EOPBADSTATE;
  const util::SocketAddress& name = enabled ? x_driver.transports().name : x_name;
  const size_t room = *length;
  *length = name.size();
  if (address) std::memcpy(address, name.data(), std::min(room, name.size()));
  return !address || room < name.size() ? -FI_ETOOSMALL : 0;
}

int Endpoint::set_name(const void* address, size_t length) noexcept {
  return x_driver.engine() ? -FI_EOPBADSTATE : take_port(address, length);
}

/// Takes the port of an address of this host, or of a wildcard. -FI_EADDRNOTAVAIL: the address is
/// not one of this domain.
int Endpoint::take_port(const void* address, size_t length) noexcept {
  const auto name = util::SocketAddress::from_sockaddr(address, length);
  if (!name.set() || name.family() != x_domain.own_address().family()) return -FI_EINVAL;
  if (!name.wildcard() && !x_domain.names_us(name)) return -FI_EADDRNOTAVAIL;
  x_name.set_port(name.port());
  return 0;
}

ssize_t Endpoint::cancel(void* context) noexcept {
  if (!x_driver.engine()) return -FI_EOPBADSTATE;
  return x_driver.post([&](protocol::Engine& engine) {
    if (engine.cancel(context) == 0 || x_domain.works().cancel(x_driver, context)) return 0;
    return -FI_ENOENT;
  });
}

}  // namespace erdma::fabric
