#include "transport/verbs/device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "transport/verbs/async_events.h"
#include "transport/verbs/device_list.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

int fail(const std::string& name, const char* what, int error) noexcept {
  ERDMA_NOTICE(device, DOMAIN, "%s: %s: %s", name.c_str(), what, std::strerror(error));
  return error ? -error : -FI_EIO;
}

/// Null with errno.
ibv_context* open_by_name(const std::string& name) noexcept {
  int count = 0;
  const DeviceList list(ibv_get_device_list(&count));
  for (int i = 0; list && i < count; ++i)
    if (name == ibv_get_device_name(list.get()[i])) return ibv_open_device(list.get()[i]);
  if (list) errno = ENODEV;
  return nullptr;
}

bool try_inline(ibv_pd* pd, ibv_cq* cq, uint32_t bytes, uint32_t& granted) noexcept {
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = bytes;
  const QueuePair qp(ibv_create_qp(pd, &attr));
  if (qp) granted = std::max(attr.cap.max_inline_data, bytes);
  return bool(qp);
}

/// There is no query for this limit: a device refuses what it cannot do. 0 or -errno.
int probe_inline(ibv_context* context, ibv_pd* pd, uint32_t& granted) noexcept {
  const CompletionQueue cq(ibv_create_cq(context, 16, nullptr, nullptr, 0));
  if (!cq) return errno ? -errno : -FI_EIO;
  for (const uint32_t bytes : {256u, 192u, 128u, 96u, 80u, 64u, 32u, 0u})
    if (try_inline(pd, cq.get(), bytes, granted)) return 0;
  return errno ? -errno : -FI_EIO;
}

/// The GID whose IPv4-mapped or IPv6 value is `address`.
ibv_gid gid_of(const util::SocketAddress& address) noexcept {
  ibv_gid gid{};
  const std::span<const std::byte> ip = address.ip();
  if (address.family() != AF_INET6) gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(gid.raw + sizeof(gid.raw) - ip.size(), ip.data(), ip.size());
  return gid;
}

/// Prefers RoCEv2 where the device tells the type; otherwise the last entry, because versions are
/// listed in order. -1 = none.
int find_gid(ibv_context* context, uint8_t port, int table, const ibv_gid& wanted) noexcept {
  int last = -1;
  for (int i = 0; i < table; ++i) {
    ibv_gid_entry entry{};
    const bool typed = !ibv_query_gid_ex(context, port, uint32_t(i), &entry, 0);
    if (!typed && ibv_query_gid(context, port, i, &entry.gid)) continue;
    if (std::memcmp(entry.gid.raw, wanted.raw, sizeof(wanted.raw)) != 0) continue;
    if (typed && entry.gid_type == IBV_GID_TYPE_ROCE_V2) return i;
    last = i;
  }
  return last;
}

/// Some drivers report 0 for a value that has no limit or that they do not set.
template <typename T>
uint32_t limit_or(T value, uint32_t fallback) noexcept {
  return value > 0 ? uint32_t(value) : fallback;
}

/// The driver of eRDMA passes 32 bits of a region's length to the adapter, although it accepts 2^36
/// and more. So a region of 4 GiB would have length 0, and a larger one would end early. The limit
/// is a multiple of all page sizes.
constexpr uint64_t kLargestErdmaRegion = (uint64_t(1) << 32) - (uint64_t(1) << 21);

uint64_t largest_region(const ibv_device_attr& device) noexcept {
  const uint64_t told = device.max_mr_size ? device.max_mr_size : UINT64_MAX;
  return device.vendor_id == kErdmaVendor ? std::min(told, kLargestErdmaRegion) : told;
}

DeviceLimits limits_of(const ibv_device_attr& device, const ibv_port_attr& port) noexcept {
  DeviceLimits limits;
  limits.max_qp = limit_or(device.max_qp, 1024);
  limits.max_qp_wr = limit_or(device.max_qp_wr, 64);
  limits.max_send_sge = limit_or(device.max_sge, 1);
  limits.max_cqe = limit_or(device.max_cqe, 4096);
  limits.max_read_in_flight =
      std::min(limit_or(device.max_qp_rd_atom, 1), limit_or(device.max_qp_init_rd_atom, 1));
  limits.max_message = limit_or(port.max_msg_sz, 1u << 20);
  limits.max_region = largest_region(device);
  limits.max_regions = limit_or(device.max_mr, UINT32_MAX);
  return limits;
}

}  // namespace

void log_leak(const char* what, int error) noexcept {
  ERDMA_WARN(DOMAIN, "%s could not be destroyed, and is leaked: %s\n", what, std::strerror(error));
}

int completion_error(ibv_wc_status status) noexcept {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return -FI_ETIMEDOUT;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return -FI_EIO;
    default:
      return -FI_ECONNRESET;
  }
}

Device::~Device() {
  if (!x_left_open.load(std::memory_order_relaxed)) return;
  (void)x_pd.release();
  (void)x_context.release();
  x_commands.keep_marked();
  x_events.keep_marked();
}

int Device::gid_index() const noexcept {
  ibv_gid now{};
  const int known = x_gid_index.load(std::memory_order_relaxed);
  if (known >= 0 && !ibv_query_gid(context(), port(), known, &now) &&
      std::memcmp(now.raw, x_gid.raw, sizeof(now.raw)) == 0)
    return known;
  const int index = find_gid(context(), port(), x_gids, x_gid);
  if (index < 0)
    ERDMA_NOTICE(device, DOMAIN,
                 "%s: none of its GIDs is %s; give its network interface this address",
                 x_name.c_str(), x_host.c_str());
  else
    x_gid_index.store(index, std::memory_order_relaxed);
  return index;
}

bool Device::ask_for_room(int error) const noexcept {
  bool evicted = false;
  for (const auto* place : {&x_evictor, &x_gpu_evictor}) {
    RegionEvictor* const evictor = place->load(std::memory_order_acquire);
    if (!evicted && !gone()) evicted = evictor && evictor->evict_after(error);
  }
  errno = error;
  return evicted;
}

/// If the eRDMA adapter does not answer a command, its command queue ends for the whole host: that
/// command fails with ETIME, and all others with ENODEV, as on a device that was removed.
bool Device::failed(int error) const noexcept {
  if (error != ENODEV && error != ETIME) return gone();
  if (!x_gone.exchange(true, std::memory_order_relaxed)) {
    ERDMA_NOTICE(port, DOMAIN,
                 "%s: the device takes no commands any more (%s): all its connections are lost",
                 x_name.c_str(), std::strerror(error));
    tell_all(context(), {.what = "the device takes no commands any more"});
  }
  return true;
}

util::Result<std::unique_ptr<Device>> Device::open(const std::string& name,
                                                   const util::SocketAddress& address,
                                                   ForkPolicy policy) {
  std::unique_ptr<Device> device(new Device);
  device->x_fork_safety = prepare_for_forks(policy);
  if (policy == ForkPolicy::safe && !device->fork_safe())
    return fail(name, "FI_ERDMA_FORK=safe: the process can't be protected", EOPNOTSUPP);
  device->x_name = name;
  device->x_address = address;
  device->x_address.set_port(0);
  device->x_host = address.host_string();
  device->x_context.reset(open_by_name(name));
  if (!device->x_context) return fail(name, "cannot be opened", errno);
  ibv_context* const context = device->context();
  device->x_commands = util::PrivateFd(context->cmd_fd);
  device->x_events = util::PrivateFd(context->async_fd);
  ibv_device_attr attr{};
  ibv_port_attr port{};
  if (const int rc = ibv_query_device(context, &attr)) return fail(name, "query", std::abs(rc));
  if (const int rc = ibv_query_port(context, device->port(), &port))
    return fail(name, "query of port 1", std::abs(rc));
  device->x_limits = limits_of(attr, port);
  device->x_pd.reset(ibv_alloc_pd(context));
  if (!device->x_pd) return fail(name, "no protection domain", errno);
  if (const int rc = probe_inline(context, device->pd(), device->x_limits.max_inline))
    return fail(name, "no queue pair can be made", -rc);
  if (context->device->transport_type == IBV_TRANSPORT_IWARP) return device;

  device->x_transport_type = TransportType::ib;
  device->x_gid = gid_of(address);
  device->x_gids = port.gid_tbl_len;
  if (device->gid_index() < 0) return -FI_EADDRNOTAVAIL;
  return device;
}

}  // namespace erdma::transport::verbs
