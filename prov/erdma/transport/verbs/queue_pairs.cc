#include "transport/verbs/queue_pairs.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "transport/verbs/connection_backend.h"
#include "util/log.h"
#include "util/random_word.h"

namespace erdma::transport::verbs {
namespace {

/// The Path of an ib device.
struct IbPath {
  uint8_t gid[16];
  uint32_t queue_pair;
  uint32_t psn;
  uint8_t mtu;    ///< ibv_mtu
  uint8_t reads;  ///< READs that it serves at a time
  uint8_t spare[6];
};
static_assert(sizeof(IbPath) == sizeof(Path));

constexpr uint8_t kRetries = 7;

/// All retries together take about `peer_timeout_ns`, and no longer.
uint8_t ack_timeout(uint64_t peer_timeout_ns) noexcept {
  uint8_t exponent = 10;
  while (exponent < 20 && (uint64_t(4096) << (exponent + 1)) * (kRetries + 1) <= peer_timeout_ns)
    ++exponent;
  return exponent;
}

uint8_t reads_of(const Device& device) noexcept {
  return uint8_t(std::min<uint32_t>(device.limits().max_read_in_flight, 128));
}

ibv_qp_attr to_receive(const Device& device, int gid_index, const IbPath& own,
                       const IbPath& peer) noexcept {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = ibv_mtu(std::min(own.mtu, peer.mtu));
  attr.dest_qp_num = peer.queue_pair;
  attr.rq_psn = peer.psn;
  attr.max_dest_rd_atomic = own.reads;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid, sizeof(peer.gid));
  attr.ah_attr.grh.sgid_index = uint8_t(gid_index);
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.port_num = device.port();
  return attr;
}

int failed(const Device& device, const char* what, int rc) noexcept {
  if (device.failed(std::abs(rc))) return -FI_ENODEV;
  ERDMA_WARN(EP_CTRL, "%s: cannot move a queue pair to %s: %s\n", device.name().c_str(), what,
             fi_strerror(std::abs(rc)));
  return -std::abs(rc);
}

}  // namespace

DeviceQueuePairs::DeviceQueuePairs(const Device& device, uint64_t peer_timeout_ns) noexcept
    : x_device(device),
      x_ack_timeout(ack_timeout(peer_timeout_ns)),
      x_next_psn(uint32_t(util::random_word())) {
  ibv_port_attr port{};
  if (!ibv_query_port(device.context(), device.port(), &port) && port.active_mtu)
    x_mtu = uint8_t(port.active_mtu);
}

ibv_qp* DeviceQueuePairs::create(uint64_t id, ibv_qp_init_attr& attr) noexcept {
  attr.qp_context = context_of(id);
  attr.qp_type = IBV_QPT_RC;
  errno = 0;  // not every provider sets it
  ibv_qp* queue_pair = ibv_create_qp(x_device.pd(), &attr);
  if (!queue_pair) {
    if (!x_device.failed(errno)) log_shortage(errno);
    return nullptr;
  }
  if (!to_init(*queue_pair)) return queue_pair;
  if (const int rc = ibv_destroy_qp(queue_pair)) log_leak("a queue pair", std::abs(rc));
  return nullptr;
}

/// Each attempt of each peer fails for this reason, so the rate of lines is limited.
void DeviceQueuePairs::log_shortage(int error) noexcept {
  unsigned suppressed = 0;
  if (!x_shortage.allow(util::SystemClock().now(), suppressed)) return;
  ERDMA_NOTICE(queue_pairs, EP_CTRL,
               "%s: cannot make a queue pair: %s (%u more times before). The device has %u for all "
               "processes together; fewer are used with a lower FI_ERDMA_MAX_CONNECTIONS",
               x_device.name().c_str(), error ? fi_strerror(error) : "no reason given", suppressed,
               x_device.limits().max_qp);
}

int DeviceQueuePairs::to_init(ibv_qp& queue_pair) noexcept {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = x_device.port();
  attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  int mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS;
  if (x_device.transport_type() == TransportType::ib) mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  const int rc = ibv_modify_qp(&queue_pair, &attr, mask);
  return rc ? failed(x_device, "INIT", rc) : 0;
}

Path DeviceQueuePairs::describe(const ibv_qp& queue_pair) noexcept {
  IbPath path{};
  std::memcpy(path.gid, x_device.gid().raw, sizeof(path.gid));
  path.queue_pair = queue_pair.qp_num;
  path.psn = x_next_psn++ & 0xffffff;
  path.mtu = x_mtu;
  path.reads = reads_of(x_device);
  Path bytes;
  std::memcpy(bytes.data(), &path, sizeof(path));
  return bytes;
}

int DeviceQueuePairs::join(ibv_qp& queue_pair, const Path& own_bytes,
                           const Path& peer_bytes) noexcept {
  IbPath own, peer;
  std::memcpy(&own, own_bytes.data(), sizeof(own));
  std::memcpy(&peer, peer_bytes.data(), sizeof(peer));
  if (peer.mtu < IBV_MTU_256 || peer.mtu > IBV_MTU_4096 || peer.queue_pair > 0xffffff ||
      peer.psn > 0xffffff) {
    ERDMA_WARN(EP_CTRL, "a peer describes an impossible queue pair\n");
    return -FI_EINVAL;
  }
  const int gid_index = x_device.gid_index();
  if (gid_index < 0) return -FI_EHOSTUNREACH;
  ibv_qp_attr attr = to_receive(x_device, gid_index, own, peer);
  int rc = ibv_modify_qp(&queue_pair, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (rc) return failed(x_device, "RTR", rc);
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = x_ack_timeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = 0;  // credits guarantee a posted receive; a retry would only hide a bug
  attr.sq_psn = own.psn;
  attr.max_rd_atomic = std::min(own.reads, peer.reads);
  rc = ibv_modify_qp(&queue_pair, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return rc ? failed(x_device, "RTS", rc) : 0;
}

}  // namespace erdma::transport::verbs
