#include "softerdma/device.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "softerdma/options.h"

namespace softerdma {
namespace {

namespace fs = std::filesystem;

/// Returns the network device with this address, or a plausible name if there is none.
std::string netdev_of(uint32_t ip, unsigned index) {
  std::string name = "eth" + std::to_string(index);
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return name;
  for (ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET &&
        reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr == ip) {
      name = i->ifa_name;
    }
  }
  freeifaddrs(list);
  return name;
}

/// Writes a new file and renames it, as other processes read it at any time.
void write_file(const fs::path& path, const std::string& text) {
  fs::path fresh = path.string() + ".new" + std::to_string(getpid());
  std::ofstream(fresh) << text << '\n';
  std::error_code ignored;
  fs::rename(fresh, path, ignored);
}

std::string guid_text(const Device& device) {
  const uint8_t* m = device.mac;
  char text[24];
  std::snprintf(text, sizeof text, "%02x%02x:%02xff:fe%02x:%02x%02x", m[0] ^ 2, m[1], m[2], m[3],
                m[4], m[5]);
  return text;
}

std::string gid_text(const ibv_gid& gid) {
  std::string text;
  for (int i = 0; i < 16; i += 2) {
    char part[8];
    std::snprintf(part, sizeof part, "%s%02x%02x", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
    text += part;
  }
  return text;
}

void write_sysfs(const Device& device, const fs::path& root, const std::string& netdev) {
  std::error_code ignored;
  fs::path pci = root / "devices/pci0000:00" / device.pci;
  fs::path ib = device.ibdev_path;
  fs::path port = ib / "ports/1";
  for (const fs::path& folder :
       {pci / "net" / netdev, port / "gids", port / "gid_attrs/ndevs", port / "gid_attrs/types",
        port / "pkeys", fs::path(device.dev_path)}) {
    fs::create_directories(folder, ignored);
  }
  fs::create_directory_symlink(pci, ib / "device", ignored);
  fs::create_directory_symlink(pci, fs::path(device.dev_path) / "device", ignored);
  write_file(pci / "vendor", "0x1ded");
  write_file(pci / "device", "0x107f");
  write_file(pci / "class", "0x020000");
  write_file(pci / "numa_node", "-1");
  write_file(ib / "fw_ver", "2.0.37");
  write_file(ib / "hca_type", "erdma");
  write_file(ib / "node_guid", guid_text(device));
  write_file(ib / "node_type", device.node_type == IBV_NODE_RNIC ? "4: RNIC" : "1: CA");
  write_file(fs::path(device.dev_path) / "ibdev", device.name);
  write_file(port / "rate", "100 Gb/sec (4X EDR)");
  write_file(port / "link_layer", "Ethernet");
  write_file(port / "pkeys/0", "0xffff");
  for (int i = 0; i < kGids; ++i) {
    ibv_gid_entry entry{};
    if (!query_gid_entry(device, i, entry)) continue;
    write_file(port / "gids" / std::to_string(i), gid_text(entry.gid));
    write_file(port / "gid_attrs/ndevs" / std::to_string(i), netdev);
    write_file(port / "gid_attrs/types" / std::to_string(i),
               entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
  }
}

void copy_text(char* to, size_t size, const std::string& text) {
  std::snprintf(to, size, "%s", text.c_str());
}

}  // namespace

void write_port_state(const Device& device) {
  fs::path port = fs::path(device.ibdev_path) / "ports/1";
  write_file(port / "state", device.active() ? "4: ACTIVE" : "1: DOWN");
  write_file(port / "phys_state", device.active() ? "5: LinkUp" : "3: Disabled");
}

std::vector<std::unique_ptr<Device>> make_devices(Fabric& fabric) {
  std::vector<std::unique_ptr<Device>> devices;
  for (const DeviceConfig& config : configured_devices()) {
    if (devices.size() == kDevicesPerProcess) break;
    auto device = std::make_unique<Device>();
    device->config = config;
    device->index = static_cast<unsigned>(devices.size());
    device->entry = fabric.device(config.ip, true, config.up);
    if (device->entry == nullptr) break;
    fabric.self().devices[device->index].ip.store(config.ip);
    bool compat = config.personality == Personality::compat;
    device->node_type = compat ? IBV_NODE_CA : IBV_NODE_RNIC;
    device->transport_type = compat ? IBV_TRANSPORT_IB : IBV_TRANSPORT_IWARP;
    device->mac[0] = 0x00;
    device->mac[1] = 0x16;
    std::memcpy(device->mac + 2, &config.ip, 4);
    char pci[16];
    std::snprintf(pci, sizeof pci, "0000:00:%02x.0", 5 + device->index);
    device->pci = pci;
    // Each host has one tree, named after its first address.
    fs::path root = fs::path(fabric.folder()) / "sys" / ip_text(config.ip);
    copy_text(device->name, sizeof device->name, config.name);
    copy_text(device->dev_name, sizeof device->dev_name, "uverbs" + std::to_string(device->index));
    copy_text(device->dev_path, sizeof device->dev_path,
              (root / "class/infiniband_verbs" / device->dev_name).string());
    copy_text(device->ibdev_path, sizeof device->ibdev_path,
              (root / "class/infiniband" / config.name).string());
    write_sysfs(*device, root, netdev_of(config.ip, device->index));
    write_port_state(*device);
    devices.push_back(std::move(device));
  }
  return devices;
}

bool query_gid_entry(const Device& device, int index, ibv_gid_entry& entry) {
  entry = {};
  entry.gid_index = static_cast<uint32_t>(index);
  entry.port_num = 1;
  entry.ndev_ifindex = if_nametoindex(netdev_of(device.config.ip, device.index).c_str());
  ibv_gid& gid = entry.gid;
  if (device.config.personality == Personality::standard) {
    if (index != 0) return false;
    entry.gid_type = IBV_GID_TYPE_IB;
    std::memcpy(gid.raw, device.mac, sizeof device.mac);
    return true;
  }
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  if (index == 0) {
    const uint8_t* m = device.mac;
    const uint8_t link_local[16] = {
        0xfe, 0x80, 0,    0,    0,    0,    0,   0, static_cast<uint8_t>(m[0] ^ 2),
        m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]};
    std::memcpy(gid.raw, link_local, sizeof link_local);
    return true;
  }
  // The index differs between devices, so that no program relies on a fixed one.
  if (index != 1 + static_cast<int>(device.index) * 2) return false;
  gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(gid.raw + 12, &device.config.ip, 4);
  return true;
}

uint32_t gid_address(const ibv_gid& gid) {
  static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  uint32_t ip = 0;
  if (std::memcmp(gid.raw, prefix, sizeof prefix) == 0) std::memcpy(&ip, gid.raw + 12, 4);
  return ip;
}

}  // namespace softerdma
