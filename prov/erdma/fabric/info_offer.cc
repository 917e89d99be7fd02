#include "fabric/info_offer.h"

#include <sys/types.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "fabric/nic.h"
#include "hmem/cuda.h"
#include "transport/transport.h"

namespace erdma::fabric {
namespace {

constexpr size_t kIovLimit = 4;
/// Operations that always fit one packet are executed in the order of posting: small RMA and
/// atomics.
constexpr size_t kOrderedBytes = transport::kAlwaysEager;
constexpr uint64_t kOrders = FI_ORDER_SAS | FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR |
                             FI_ORDER_WAW | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR |
                             FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW |
                             FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
/// The top bit marks a protocol that only one provider defines (fi_endpoint(3)).
constexpr uint32_t kProtocol = (1u << 31) | 0xE;
constexpr size_t kInjectSize = 4096;
constexpr size_t kMaxEndpoints = 1024;
constexpr size_t kMaxQueues = 65536;
constexpr size_t kMaxRegions = size_t{1} << 20;
/// Alternating bits: no structure is assumed in any of the 64 bits of a tag.
constexpr uint64_t kTagFormat = 0xAAAA'AAAA'AAAA'AAAA;

void fill_domain(fi_domain_attr& domain) {
  domain.threading = FI_THREAD_SAFE;
  domain.control_progress = FI_PROGRESS_MANUAL;
  domain.data_progress = FI_PROGRESS_MANUAL;
  domain.resource_mgmt = FI_RM_ENABLED;
  domain.av_type = FI_AV_UNSPEC;
  domain.mr_mode = kMrMode;
  domain.mr_key_size = sizeof(uint64_t);
  domain.cq_data_size = sizeof(uint64_t);
  domain.cq_cnt = kMaxQueues;
  domain.cntr_cnt = kMaxQueues;
  domain.ep_cnt = domain.tx_ctx_cnt = domain.rx_ctx_cnt = kMaxEndpoints;
  domain.max_ep_tx_ctx = 1;
  domain.max_ep_rx_ctx = 1;
  domain.max_ep_srx_ctx = kMaxEndpoints;
  domain.mr_iov_limit = kIovLimit;
  domain.mr_cnt = kMaxRegions;
  domain.caps = kDomainCaps;
  domain.auth_key_size = kMaxKeyBytes;
  // Older headers lack these members. A build with them leaves the members 0, which means unknown.
  [](auto& attr) {
    if constexpr (requires { attr.max_cntr_value; })
      attr.max_cntr_value = attr.max_err_cntr_value = UINT64_MAX;
  }(domain);
}

void fill_endpoint(fi_info& info, const Settings& settings) {
  info.ep_attr->type = FI_EP_RDM;
  info.ep_attr->protocol = kProtocol;
  info.ep_attr->protocol_version = 1;
  info.ep_attr->max_msg_size = SSIZE_MAX;
  info.ep_attr->mem_tag_format = kTagFormat;
  info.ep_attr->max_order_raw_size = kOrderedBytes;
  info.ep_attr->max_order_war_size = kOrderedBytes;
  info.ep_attr->max_order_waw_size = kOrderedBytes;
  info.ep_attr->tx_ctx_cnt = 1;
  info.ep_attr->rx_ctx_cnt = 1;
  info.ep_attr->auth_key_size = kMaxKeyBytes;

  info.tx_attr->caps = kTxCaps;
  info.tx_attr->op_flags = kTxOpFlags;
  info.tx_attr->msg_order = kOrders;
  info.tx_attr->inject_size = kInjectSize;
  info.tx_attr->size = settings.tx_size;
  info.tx_attr->iov_limit = kIovLimit;
  info.tx_attr->rma_iov_limit = kIovLimit;

  info.rx_attr->caps = kRxCaps;
  info.rx_attr->op_flags = kRxOpFlags;
  info.rx_attr->msg_order = kOrders;
  info.rx_attr->size = settings.rx_size;
  info.rx_attr->iov_limit = kIovLimit;
}

/// Offers device memory in messages and RMA. It removes atomics, because the CPU can't access
/// device memory that peers would name, and triggered operations, because the provider determines
/// the kind of memory when the application posts the operation.
void add_device_memory(fi_info& info) {
  for (uint64_t* caps : {&info.caps, &info.tx_attr->caps, &info.rx_attr->caps})
    *caps = (*caps & ~(FI_ATOMIC | FI_TRIGGER)) | FI_HMEM;
  info.domain_attr->mr_mode |= FI_MR_HMEM;
}

std::string hexadecimal(uint32_t number) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%04x", number);
  return text;
}

}  // namespace

char* duplicate(const char* text) {
  char* copy = strdup(text);
  if (!copy) throw std::bad_alloc();
  return copy;
}

InfoPtr make_offer(const Settings& settings, uint64_t asked) {
  InfoPtr info(fi_allocinfo());
  if (!info) throw std::bad_alloc();
  info->caps = kCaps;
  info->fabric_attr->name = duplicate(kFabricName);
  info->fabric_attr->prov_version = kProviderVersion;
  fill_domain(*info->domain_attr);
  fill_endpoint(*info, settings);
  if (asked & FI_HMEM && settings.cuda != Switch::off && hmem::Cuda::get())
    add_device_memory(*info);
  return info;
}

void describe_shm_device(fi_info& info, const util::SocketAddress& address) {
  info.domain_attr->name = duplicate(kShmDomainName);
  NicDescription description;
  description.name = kShmDomainName;
  description.device_id = "none";
  description.device_version = "none";
  description.vendor_id = "none";
  description.driver = kProviderName;
  description.firmware = "none";
  description.address = address.host_string();
  description.network_type = "shared memory";
  description.bus.bus_type = FI_BUS_UNKNOWN;
  description.mtu = 65536;
  description.speed = 100'000'000'000;  // order of magnitude of one core's copy
  info.nic = make_nic(std::move(description));
}

void describe_nic(fi_info& info, const transport::verbs::DeviceDescription& device,
                  const util::SocketAddress& address) {
  info.domain_attr->name = duplicate(device.name.c_str());
  NicDescription description;
  description.name = device.name;
  description.device_id = hexadecimal(device.part);
  description.device_version = "unknown";
  description.vendor_id = hexadecimal(device.vendor);
  description.driver = device.driver.empty() ? "unknown" : device.driver;
  description.firmware = device.firmware.empty() ? "unknown" : device.firmware;
  description.address = address.host_string();
  description.network_type = device.iwarp ? "Ethernet (iWARP)" : "Ethernet (RoCEv2)";
  description.bus.bus_type = device.pci ? FI_BUS_PCI : FI_BUS_UNKNOWN;
  if (device.pci)
    description.bus.attr.pci = {device.pci_domain, device.pci_bus, device.pci_device,
                                device.pci_function};
  description.mtu = device.mtu;
  description.speed = device.speed;
  description.up = device.active;
  info.nic = make_nic(std::move(description));
}

}  // namespace erdma::fabric
