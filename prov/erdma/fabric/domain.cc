#include "fabric/domain.h"

#include <cstring>
#include <utility>

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_trigger.h>

#include "fabric/auto_progress.h"
#include "fabric/av.h"
#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/deferred.h"
#include "fabric/device.h"
#include "fabric/endpoint.h"
#include "fabric/endpoint_ops.h"
#include "fabric/fabric.h"
#include "fabric/info_offer.h"
#include "fabric/poll_set.h"
#include "fabric/shared_receive.h"
#include "hmem/cuda.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

bool wants_auto_progress(const fi_info& info) noexcept {
  return info.domain_attr && (info.domain_attr->data_progress == FI_PROGRESS_AUTO ||
                              info.domain_attr->control_progress == FI_PROGRESS_AUTO);
}

util::LockKind lock_kind(const fi_info& info) noexcept {
  // FI_PROGRESS_CONTROL_UNIFIED, which libfabric 1.17 does not define.
  constexpr int kControlUnified = FI_PROGRESS_MANUAL + 1;
  if (!info.domain_attr || info.domain_attr->threading != FI_THREAD_DOMAIN ||
      wants_auto_progress(info))
    return util::LockKind::mutex;
  return enum_value(info.domain_attr->control_progress) == kControlUnified ? util::LockKind::none
                                                                           : util::LockKind::biased;
}

/// True if the source address is that of a host, and not a wildcard.
bool names_host(const fi_info& info) noexcept {
  const auto address = util::SocketAddress::from_sockaddr(info.src_addr, info.src_addrlen);
  return address.set() && !address.wildcard();
}

util::SocketAddress own_host(const fi_info& info, const LocalAddresses& local) noexcept {
  util::SocketAddress address =
      names_host(info) ? util::SocketAddress::from_sockaddr(info.src_addr, info.src_addrlen)
                       : local.primary(info.addr_format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_INET);
  address.set_port(0);
  return address;
}

std::string key_text(const uint8_t* key, size_t size) {
  return key ? std::string(reinterpret_cast<const char*>(key), size) : std::string();
}

}  // namespace

Domain::Domain(Fabric& fabric, const fi_info& info, Settings settings, void* context)
    : FidObject(FI_CLASS_DOMAIN, context, &fabric.children()),
      x_fabric(fabric),
      x_auto(wants_auto_progress(info)),
      x_caps(info.caps),
      x_settings(std::move(settings)),
      x_hmem(cuda_for(info.caps)),
      x_local(LocalAddresses::load()),
      x_own_address(own_host(info, x_local)),
      x_lock(lock_kind(info)),
      x_regions(x_lock, info.domain_attr ? info.domain_attr->mr_mode : 0, fabric.api_version,
                &x_children, cuda_for(info.caps)),
      x_works(x_regions),
      x_transports(x_settings, x_local, x_regions),
      x_key(info.domain_attr ? key_text(info.domain_attr->auth_key, info.domain_attr->auth_key_size)
                             : std::string()) {}

Domain::~Domain() = default;

int Domain::start(const fi_info& info) {
  const char* name = info.domain_attr ? info.domain_attr->name : nullptr;
  const bool on_nic = name && strcmp(name, kShmDomainName) != 0;
  if (on_nic && !names_host(info)) x_own_address = address_of_device(name, info.addr_format);
  if (!x_own_address.set()) {
    ERDMA_NOTICE(device, DOMAIN, "cannot open domain %s: there is no %s address on %s",
                 name ? name : kShmDomainName,
                 info.addr_format == FI_SOCKADDR_IN6 ? "IPv6" : "IPv4",
                 on_nic ? "a NIC of this name" : "this host");
    return -FI_EADDRNOTAVAIL;
  }
  if (on_nic)
    if (const int bad = x_transports.open_nic(info, x_own_address, cuda_for(info.caps))) return bad;
  if (!x_auto) return 0;
  auto driver = AutoProgress::start(x_lock);
  if (!driver) return driver.error();
  x_auto_progress = std::move(*driver);
  return 0;
}

hmem::Cuda* Domain::cuda_for(uint64_t caps) const noexcept {
  return caps & FI_HMEM && x_settings.cuda != Switch::off ? hmem::Cuda::get() : nullptr;
}

std::string Domain::key_of(const fi_info& info) const {
  std::string key;
  if (info.ep_attr) key = key_text(info.ep_attr->auth_key, info.ep_attr->auth_key_size);
  return !key.empty() ? key : !x_key.empty() ? x_key : x_settings.job_key;
}

const char* Domain::lacks_for(const fi_info& info) const noexcept {
  const fi_domain_attr& asked = *info.domain_attr;
  const auto source = util::SocketAddress::from_sockaddr(info.src_addr, info.src_addrlen);
  const bool names_keys = asked.mr_mode == kMrBasic || asked.mr_mode & FI_MR_PROV_KEY;
  if (x_transports.device_name() != asked.name) return "the device that is asked for";
  if (source.family() != x_own_address.family() || !names_us(source))
    return "the address that is asked for";
  if (names_keys && !x_regions.provider_keys()) return "FI_MR_PROV_KEY, which targets need";
  if (wants_auto_progress(info) && !x_auto) return "FI_PROGRESS_AUTO";
  if (lock_kind(info) > x_lock.kind())
    return "a lock: it was opened with FI_THREAD_DOMAIN or FI_PROGRESS_CONTROL_UNIFIED";
  return info.caps & FI_HMEM && !x_hmem ? "FI_HMEM" : nullptr;
}

int Domain::check_owned() const noexcept {
  if (x_lock.owned()) return 0;
  ERDMA_WARN(DOMAIN,
             "a forked child can't open or enable objects in a domain of its parent: open a domain "
             "in the child\n");
  return -FI_EOPBADSTATE;
}

uint32_t Domain::api_version() const noexcept {
  return x_fabric.api_version;
}

util::SocketAddress Domain::canonical(const util::SocketAddress& address) const noexcept {
  const bool on_nic = x_transports.has_nic();
  if (on_nic && !address.loopback()) return x_local.reached_from(x_own_address, address);
  if (on_nic ? address.family() != x_own_address.family() : !x_local.contains(address))
    return address;
  util::SocketAddress ours = x_own_address;
  ours.set_port(address.port());
  return ours;
}

bool Domain::names_us(const util::SocketAddress& address) const noexcept {
  if (!x_transports.has_nic()) return x_local.contains(address);
  return address.loopback() || address.same_host(x_own_address);
}

/// libfabric binds event queues to domains for asynchronous memory registration. The provider
/// registers synchronously, so it accepts the queue and posts nothing to it.
int Domain::bind(fid_t object, uint64_t flags) noexcept {
  if (!object) return -FI_EINVAL;
  return object->fclass == FI_CLASS_EQ && flags == 0 ? 0 : -FI_EINVAL;
}

int Domain::control(int command, void* argument) {
  switch (command) {
    case FI_QUEUE_WORK:
      return queue_work(*this, static_cast<const fi_deferred_work*>(argument));
    case FI_CANCEL_WORK: {
      if (!argument) return -FI_EINVAL;
      const util::Guard guard(x_lock);
      return x_works.cancel_work(argument);
    }
    case FI_FLUSH_WORK:
      return flush_work(*this, argument);
    case FI_MAP_RAW_MR:
      return map_raw_key(static_cast<const struct fi_mr_map_raw*>(argument));
    case FI_UNMAP_KEY:
      return argument ? 0 : -FI_EINVAL;  // nothing was allocated
    default:
      return -FI_ENOSYS;
  }
}

int Domain::close() noexcept {
  if (x_children.count() > 0) return -FI_EBUSY;
  g_open_domains.remove(*this);
  delete this;
  return 0;
}

// --- entry points -------------------------------------------------------------------------------

namespace {

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) noexcept {
  if (!info || !ep) return -FI_EINVAL;
  return abi_call([&] { return Endpoint::open(Domain::from(domain), *info, ep, context); });
}

int open_endpoint2(fid_domain* domain, fi_info* info, fid_ep** ep, uint64_t flags,
                   void* context) noexcept {
  return flags ? -FI_EINVAL : open_endpoint(domain, info, ep, context);
}

template <typename Open>
struct OwnedOnly;
template <typename... Args>
struct OwnedOnly<int (*)(fid_domain*, Args...) noexcept> {
  template <auto kOpen>
  static int open(fid_domain* domain, Args... args) noexcept {
    const int refused = Domain::from(domain).check_owned();
    return refused ? refused : kOpen(domain, args...);
  }
};
/// The entry point kOpen, refused in a forked child.
template <auto kOpen>
constexpr auto kOwnedOnly = &OwnedOnly<decltype(kOpen)>::template open<kOpen>;

fi_ops_domain g_domain_ops = [] {
  auto ops = refusing<fi_ops_domain>();
  ops.av_open = kOwnedOnly<open_av>;
  ops.cq_open = kOwnedOnly<open_cq>;
  ops.endpoint = kOwnedOnly<open_endpoint>;
  ops.cntr_open = kOwnedOnly<open_cntr>;
  ops.poll_open = kOwnedOnly<open_poll_set>;
  ops.srx_ctx = kOwnedOnly<open_shared_receive>;
  ops.query_atomic = query_atomic;
  ops.endpoint2 = kOwnedOnly<open_endpoint2>;
  return ops;
}();

}  // namespace

QueueParent parent_in(fid_domain* fid) {
  Domain& domain = Domain::from(fid);
  return {domain.lock(), domain.api_version(), domain.auto_progress() != nullptr,
          &domain.children()};
}

int Domain::open(Fabric& fabric, const fi_info& info, fid_domain** domain, void* context) {
  auto made = std::make_unique<Domain>(fabric, info, fabric.settings(), context);
  const int started = made->start(info);
  if (started != 0) return started;
  made->ops = &g_domain_ops;
  made->mr = &g_mr_ops;
  g_open_domains.add(*made);
  *domain = made.release();
  return 0;
}

}  // namespace erdma::fabric
