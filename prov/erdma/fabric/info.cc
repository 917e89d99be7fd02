#include "fabric/info.h"

#include <strings.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include <rdma/fi_errno.h>

#include "fabric/abi.h"
#include "fabric/device.h"
#include "fabric/env.h"
#include "fabric/info_address.h"
#include "fabric/info_match.h"
#include "fabric/info_offer.h"
#include "fabric/local_addresses.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

bool is_provider_name(std::string_view token) noexcept {
  constexpr size_t kLength = sizeof(kProviderName) - 1;
  return token.size() == kLength && strncasecmp(token.data(), kProviderName, kLength) == 0;
}

/// Is the name one of the list, which does not begin with ^ (all but these)?
bool lists_provider(std::string_view list) noexcept {
  if (list.starts_with('^')) return false;
  while (!list.empty()) {
    const size_t end = list.find_first_of(",;");
    if (is_provider_name(list.substr(0, end))) return true;
    list.remove_prefix(end == list.npos ? list.size() : end + 1);
  }
  return false;
}

std::string join(const std::vector<DeviceReport>& devices) {
  if (devices.empty()) return "this host has no RDMA device";
  std::string text;
  for (const DeviceReport& device : devices)
    text += (text.empty() ? "" : "; ") + device.name + ": " + device.reason;
  return text;
}

/// May there be single-host operation? Says why each NIC is not used, unless the user knows.
int choose_device(const Settings& settings, const fi_info* hints) {
  if (std::ranges::find(settings.devices, kShmDevice) != settings.devices.end()) return 0;
  const std::string reasons = join(survey_devices(kInfinibandClass, settings.devices));
  const char* prov_name = hints && hints->fabric_attr ? hints->fabric_attr->prov_name : nullptr;
  if (!asked_by_name(std::getenv("FI_PROVIDER"), prov_name)) {
    ERDMA_INFO(CORE, "no NIC to use (%s), and erdma was not asked for by name\n", reasons.c_str());
    return -FI_ENODATA;
  }
  static std::atomic_flag warned;
  if (!warned.test_and_set())
    ERDMA_WARN(CORE,
               "no NIC to use (%s): processes of other hosts can't be reached. "
               "FI_ERDMA_DEVICE=shm asks for this and silences the warning\n",
               reasons.c_str());
  return 0;
}

void put_address(const util::SocketAddress& address, void*& member, size_t& length) {
  if (!address.set()) return;
  member = std::malloc(address.size());
  if (!member) throw std::bad_alloc();
  std::memcpy(member, address.data(), address.size());
  length = address.size();
}

int find_info(uint32_t version, const char* node, const char* service, uint64_t flags,
              const fi_info* hints, fi_info** result) {
  if (flags & FI_PEER) {
    ERDMA_INFO(CORE, "FI_PEER is set: this provider does not share its objects with others\n");
    return -FI_ENODATA;
  }
  const Settings settings = read_settings();
  InfoPtr info = make_offer(settings);
  if (hints)
    if (int rc = check_hints(*info, version, *hints)) return rc;
  if (int rc = choose_device(settings, hints)) return rc;

  InfoAddresses addresses;
  const LocalAddresses local = LocalAddresses::load();
  if (int rc = resolve_addresses(local, node, service, flags, hints, addresses)) return rc;

  apply_hints(*info, version, hints);
  info->addr_format = addresses.source.family() == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
  put_address(addresses.source, info->src_addr, info->src_addrlen);
  put_address(addresses.destination, info->dest_addr, info->dest_addrlen);
  describe_shm_device(*info, addresses.source);
  *result = info.release();
  return 0;
}

}  // namespace

bool asked_by_name(const char* filter, const char* prov_name) noexcept {
  return (filter && lists_provider(filter)) || (prov_name && lists_provider(prov_name));
}

int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept {
  return abi_call([&] { return find_info(version, node, service, flags, hints, info); });
}

int check_info(uint32_t version, const fi_info& info) {
  const int rc = check_hints(*make_offer(read_settings()), version, info);
  return rc == -FI_ENODATA ? -FI_EINVAL : rc;
}

}  // namespace erdma::fabric
