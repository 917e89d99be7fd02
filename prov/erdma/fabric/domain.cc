#include "fabric/domain.h"

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "fabric/abi.h"
#include "fabric/auto_progress.h"
#include "fabric/av.h"
#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/endpoint.h"
#include "fabric/endpoint_ops.h"
#include "fabric/fabric.h"
#include "fabric/fid_stubs.h"
#include "transport/self/self_transport.h"
#include "transport/shm/shm_transport.h"

namespace erdma::fabric {
namespace {

bool wants_auto_progress(const fi_info& info) noexcept {
  return info.domain_attr && (info.domain_attr->data_progress == FI_PROGRESS_AUTO ||
                              info.domain_attr->control_progress == FI_PROGRESS_AUTO);
}

bool needs_lock(const fi_info& info) noexcept {
  return !info.domain_attr || info.domain_attr->threading != FI_THREAD_DOMAIN ||
         wants_auto_progress(info);
}

util::SocketAddress own_host(const fi_info& info, const LocalAddresses& local) noexcept {
  auto address = util::SocketAddress::from_sockaddr(info.src_addr, info.src_addrlen);
  if (!address.set() || address.wildcard())
    address = local.primary(info.addr_format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_INET);
  address.set_port(0);
  return address;
}

transport::shm::Options shm_options(const Settings& settings) noexcept {
  using transport::shm::PtracerPolicy;
  using transport::shm::StreamingPolicy;
  transport::shm::Options options;
  options.cma = settings.cma != Switch::off;
  options.ptracer = settings.ptracer == Ptracer::any    ? PtracerPolicy::any
                    : settings.ptracer == Ptracer::none ? PtracerPolicy::none
                                                        : PtracerPolicy::ancestor;
  options.streaming = settings.streaming == Switch::on    ? StreamingPolicy::always
                      : settings.streaming == Switch::off ? StreamingPolicy::never
                                                          : StreamingPolicy::calibrate;
  options.eager_bytes = settings.eager_bytes;
  options.hot_peers = settings.hot_peers;
  options.connect_timeout_ns = uint64_t(settings.connect_timeout_ms) * 1'000'000;
  return options;
}

}  // namespace

Domain::Domain(Fabric& fabric, const fi_info& info, Settings settings, void* context)
    : x_fabric(fabric),
      x_auto(wants_auto_progress(info)),
      x_settings(std::move(settings)),
      x_local(LocalAddresses::load()),
      x_own_address(own_host(info, x_local)),
      x_lock(needs_lock(info)),
      x_regions(
          x_lock, info.domain_attr ? info.domain_attr->mr_mode : 0, fabric.api_version,
          [this] { child_opened(); }, [this] { child_closed(); }) {
  fid.fclass = FI_CLASS_DOMAIN;
  fid.context = context;
  x_fabric.child_opened();
}

Domain::~Domain() {
  x_fabric.child_closed();
}

int Domain::start() {
  if (!x_own_address.set()) return -FI_EADDRNOTAVAIL;
  if (!x_auto) return 0;
  auto driver = AutoProgress::start(x_lock);
  if (!driver) return driver.error();
  x_auto_progress = std::move(*driver);
  return 0;
}

uint32_t Domain::api_version() const noexcept {
  return x_fabric.api_version;
}

uint32_t Domain::addr_format() const noexcept {
  return x_own_address.family() == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
}

util::SocketAddress Domain::canonical(const util::SocketAddress& address) const noexcept {
  if (!x_local.contains(address)) return address;
  util::SocketAddress ours = x_own_address;
  ours.set_port(address.port());
  return ours;
}

util::Result<TransportSet> Domain::open_transports(const util::SocketAddress& asked) {
  auto shm = transport::shm::ShmTransport::open(shm_options(x_settings), asked);
  if (!shm) return shm.error();
  TransportSet set;
  set.name = (*shm)->name();
  set.self = std::make_unique<transport::self::SelfTransport>(set.name);
  set.shm = std::move(*shm);
  return set;
}

/// Only an event queue can be bound, for asynchronous registration, which we do not do.
int Domain::bind(fid_t object, uint64_t flags) noexcept {
  if (!object) return -FI_EINVAL;
  return object->fclass == FI_CLASS_EQ && flags == 0 ? 0 : -FI_EINVAL;
}

int Domain::close() noexcept {
  if (x_children.load(std::memory_order_relaxed) > 0) return -FI_EBUSY;
  delete this;
  return 0;
}

// --- tables -------------------------------------------------------------------------------------

namespace {

int close_domain(fid_t domain) noexcept {
  return Domain::from(domain).close();
}

int bind_domain(fid_t domain, fid_t object, uint64_t flags) noexcept {
  return Domain::from(domain).bind(object, flags);
}

int open_av_entry(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context) noexcept {
  return open_av(Domain::from(domain), attr, av, context);
}

int open_cq_entry(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) noexcept {
  return open_cq(Domain::from(domain), attr, cq, context);
}

int open_cntr_entry(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr,
                    void* context) noexcept {
  return open_cntr(Domain::from(domain), attr, cntr, context);
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) noexcept {
  if (!info || !ep) return -FI_EINVAL;
  return abi_call([&] { return Endpoint::open(Domain::from(domain), *info, ep, context); });
}

int open_endpoint2(fid_domain* domain, fi_info* info, fid_ep** ep, uint64_t flags,
                   void* context) noexcept {
  return flags ? -FI_EINVAL : open_endpoint(domain, info, ep, context);
}

fi_ops g_domain_fid_ops = {
    .size = sizeof(fi_ops),
    .close = close_domain,
    .bind = bind_domain,
    .control = no_control,
    .ops_open = no_ops_open,
    .tostr = no_tostr,
    .ops_set = no_ops_set,
};

fi_ops_domain g_domain_ops = {
    .size = sizeof(fi_ops_domain),
    .av_open = open_av_entry,
    .cq_open = open_cq_entry,
    .endpoint = open_endpoint,
    .scalable_ep = not_offered,
    .cntr_open = open_cntr_entry,
    .poll_open = not_offered,
    .stx_ctx = not_offered,
    .srx_ctx = not_offered,
    .query_atomic = not_offered,
    .query_collective = not_offered,
    .endpoint2 = open_endpoint2,
};

}  // namespace

int Domain::open(Fabric& fabric, const fi_info& info, fid_domain** domain, void* context) {
  auto made = std::make_unique<Domain>(fabric, info, fabric.settings(), context);
  const int started = made->start();
  if (started != 0) return started;
  made->fid.ops = &g_domain_fid_ops;
  made->ops = &g_domain_ops;
  made->mr = &g_mr_ops;
  *domain = made.release();
  return 0;
}

}  // namespace erdma::fabric
