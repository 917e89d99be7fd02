#include "transport/verbs/device_list.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "transport/verbs/handles.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

namespace fs = std::filesystem;
constexpr uint8_t kPort = 1;

/// First line of a file; empty if there is none.
std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\0')) line.pop_back();
  return line;
}

/// Target of a link in sysfs; empty if there is none.
fs::path target(const fs::path& link) {
  std::error_code error;
  const fs::path path = fs::canonical(link, error);
  return error ? fs::path() : path;
}

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Interfaces interfaces() {
  ifaddrs* list = nullptr;
  return {getifaddrs(&list) ? nullptr : list, &freeifaddrs};
}

/// The GIDs of iWARP devices begin with their MAC address.
std::string netdev_by_mac(const ibv_gid& gid) {
  constexpr size_t kMac = 6;
  static const unsigned char none[kMac] = {};
  if (std::memcmp(gid.raw, none, kMac) == 0) return {};
  const Interfaces list = interfaces();
  return interface_with_mac(list.get(), std::span(gid.raw).first<kMac>());
}

/// Link-local addresses do not count: every interface that is up has one.
bool counts(const sockaddr* address) noexcept {
  if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return false;
  return address->sa_family == AF_INET ||
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool has_address(const ifaddrs* list, const char* name) noexcept {
  for (const ifaddrs* each = list; each; each = each->ifa_next)
    if (std::strcmp(each->ifa_name, name) == 0 && counts(each->ifa_addr)) return true;
  return false;
}

/// The only network interface of the same PCI function.
std::string netdev_of_parent(const fs::path& device) {
  std::error_code error;
  std::string name;
  for (const auto& entry : fs::directory_iterator(device / "device/net", error)) {
    if (!name.empty()) return {};
    name = entry.path().filename();
  }
  return name;
}

/// Kernels differ in which of these they provide for iWARP.
std::string netdev_of(ibv_context* context, const fs::path& device) {
  char name[IF_NAMESIZE] = "";
  ibv_gid_entry entry{};
  if (context && !ibv_query_gid_ex(context, kPort, 0, &entry, 0) && entry.ndev_ifindex &&
      if_indextoname(entry.ndev_ifindex, name))
    return name;
  std::string found = read_line(device / "ports" / std::to_string(kPort) / "gid_attrs/ndevs/0");
  ibv_gid gid{};
  if (found.empty() && context && !ibv_query_gid(context, kPort, 0, &gid))
    found = netdev_by_mac(gid);
  return found.empty() ? netdev_of_parent(device) : found;
}

std::vector<util::SocketAddress> addresses_of(const std::string& netdev) {
  std::vector<util::SocketAddress> addresses;
  const Interfaces list = interfaces();
  for (const ifaddrs* each = list.get(); each; each = each->ifa_next) {
    if (!each->ifa_addr || netdev != each->ifa_name) continue;
    const auto address = util::SocketAddress::from_sockaddr(
        each->ifa_addr, util::SocketAddress::size_of(each->ifa_addr->sa_family));
    if (address.set()) addresses.push_back(address);
  }
  return addresses;
}

/// Bits per second of one lane, in units of 100 Mb/s: the data rate, not the line rate.
uint64_t lane_speed(uint8_t active_speed) noexcept {
  static constexpr uint16_t kSpeeds[] = {25, 50, 100, 100, 140, 250, 500, 1000};
  return std::has_single_bit(active_speed) ? kSpeeds[std::countr_zero(active_speed)] : 0;
}

unsigned lanes(uint8_t active_width) noexcept {
  static constexpr uint8_t kLanes[] = {1, 4, 8, 12, 2};
  const bool known = std::has_single_bit(active_width) && active_width <= 16;
  return known ? kLanes[std::countr_zero(active_width)] : 1;
}

std::string guid_text(uint64_t big_endian) {
  uint8_t b[8];
  std::memcpy(b, &big_endian, sizeof(b));
  char text[24];
  std::snprintf(text, sizeof(text), "%02x%02x:%02x%02x:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3],
                b[4], b[5], b[6], b[7]);
  return text;
}

void describe_port(const ibv_port_attr& port, DeviceDescription& to) {
  static constexpr const char* kStates[] = {"NOP",   "DOWN",   "INIT",
                                            "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  to.state = size_t(port.state) < std::size(kStates) ? kStates[port.state] : "unknown";
  to.active = port.state == IBV_PORT_ACTIVE;
  const unsigned mtu = unsigned(port.active_mtu);
  to.mtu = mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
  to.speed = lane_speed(port.active_speed) * lanes(port.active_width) * 100'000'000;
}

/// Needs an open device.
void describe_device(ibv_context* context, DeviceDescription& to) {
  ibv_device_attr device{};
  ibv_port_attr port{};
  int rc = ibv_query_device(context, &device);
  if (!rc) {
    to.vendor = device.vendor_id;
    to.part = device.vendor_part_id;
    to.firmware.assign(device.fw_ver, strnlen(device.fw_ver, sizeof(device.fw_ver)));
    rc = ibv_query_port(context, kPort, &port);
  }
  if (rc)
    to.why_unusable = std::string("it can't be queried: ") + std::strerror(std::abs(rc));
  else
    describe_port(port, to);
}

/// Uses sysfs, which also describes a device that cannot be opened.
void describe_bus(const fs::path& device, DeviceDescription& to) {
  const fs::path parent = target(device / "device");
  to.driver = target(parent / "driver/module").filename();
  if (to.driver.empty()) to.driver = target(parent / "driver").filename();
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  char end = 0;
  to.pci = std::sscanf(parent.filename().c_str(), "%x:%x:%x.%x%c", &domain, &bus, &slot, &function,
                       &end) == 4;
  if (!to.pci) return;
  to.pci_domain = uint16_t(domain);
  to.pci_bus = uint8_t(bus);
  to.pci_device = uint8_t(slot);
  to.pci_function = uint8_t(function);
}

/// The ids of the PCI function, for a device that cannot be queried.
void identify_by_bus(const fs::path& device, DeviceDescription& to) {
  to.vendor = uint32_t(std::strtoul(read_line(device / "device/vendor").c_str(), nullptr, 16));
  to.part = uint32_t(std::strtoul(read_line(device / "device/device").c_str(), nullptr, 16));
}

std::string why_not_opened(int error) {
  std::string why = std::string("it can't be opened: ") + std::strerror(error);
  if (error == EPERM) why += " (older hardware needs CAP_SYS_RAWIO)";
  if (error == EACCES) why += " (see the permissions of /dev/infiniband/uverbs*)";
  if (error == EMFILE || error == ENFILE) why += " (raise ulimit -n)";
  if (error == ENOMEM) why += " (raise ulimit -l)";
  return why;
}

DeviceDescription describe(ibv_device* device) {
  DeviceDescription to;
  const fs::path path = device->ibdev_path;
  to.name = ibv_get_device_name(device);
  to.iwarp = device->transport_type == IBV_TRANSPORT_IWARP;
  to.node_guid = guid_text(ibv_get_device_guid(device));
  describe_bus(path, to);
  identify_by_bus(path, to);
  to.firmware = read_line(path / "fw_ver");
  errno = 0;
  const Context context(ibv_open_device(device));
  if (context)
    describe_device(context.get(), to);
  else
    to.why_unusable = why_not_opened(errno);
  to.netdev = netdev_of(context.get(), path);
  if (!to.netdev.empty()) to.addresses = addresses_of(to.netdev);
  return to;
}

std::string why_unlisted(const fs::path& path) {
  std::error_code error;
  const fs::directory_iterator verbs(path / "device/infiniband_verbs", error);
  if (error) return "programs can't use it: load the module ib_uverbs";
  const fs::path file =
      verbs == fs::directory_iterator() ? fs::path() : "/dev/infiniband" / verbs->path().filename();
  if (!file.empty() && !fs::exists(file, error))
    return "its device file " + file.string() + " is missing: pass it into the container";
  return "libibverbs has no driver that fits it: install it, in a container in the image "
         "(IBV_SHOW_WARNINGS=1 ibv_devices tells more)";
}

DeviceDescription describe_unlisted(const fs::path& path) {
  DeviceDescription to;
  to.name = path.filename();
  describe_bus(path, to);
  identify_by_bus(path, to);
  to.netdev = netdev_of(nullptr, path);
  to.why_unusable = why_unlisted(path);
  return to;
}

}  // namespace

std::string interface_with_mac(const ifaddrs* list, std::span<const uint8_t, 6> mac) {
  const char* best = nullptr;
  int best_rank = -1;
  for (const ifaddrs* each = list; each; each = each->ifa_next) {
    if (!each->ifa_addr || each->ifa_addr->sa_family != AF_PACKET) continue;
    const auto* link = reinterpret_cast<const sockaddr_ll*>(each->ifa_addr);
    if (link->sll_halen != mac.size() || !std::equal(mac.begin(), mac.end(), link->sll_addr))
      continue;
    const bool up = each->ifa_flags & IFF_UP;
    const int rank = 2 * int(has_address(list, each->ifa_name)) + int(up);
    if (best)
      ERDMA_INFO(FABRIC, "%s and %s have the same MAC address: %s is taken\n", best, each->ifa_name,
                 rank > best_rank ? each->ifa_name : best);
    if (rank <= best_rank) continue;
    best = each->ifa_name;
    best_rank = rank;
  }
  return best ? best : "";
}

void add_unlisted(std::vector<DeviceDescription>& listed, const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto is_it = [&](const DeviceDescription& device) {
      return device.name == entry.path().filename();
    };
    if (std::none_of(listed.begin(), listed.end(), is_it))
      listed.push_back(describe_unlisted(entry.path()));
  }
}

std::vector<DeviceDescription> list_devices() {
  std::vector<DeviceDescription> descriptions;
  int count = 0;
  const DeviceList list(ibv_get_device_list(&count));
  for (int i = 0; list && i < count; ++i) descriptions.push_back(describe(list.get()[i]));
  const char* const sysfs = std::getenv("SYSFS_PATH");  // libibverbs reads it, too
  add_unlisted(descriptions, (sysfs ? sysfs : "/sys") + std::string("/class/infiniband"));
  std::sort(descriptions.begin(), descriptions.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return descriptions;
}

}  // namespace erdma::transport::verbs
