#include "softerdma/options.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>

#include "softerdma/report.h"

namespace softerdma {
namespace {

struct Knob {
  const char* name;
  uint64_t Limits::*member;
  uint64_t value;
};

constexpr uint64_t kGiB = 1ull << 30;
constexpr Knob kKnobs[] = {
    {"max_qp", &Limits::max_qp, 4095},
    {"max_qp_wr", &Limits::max_qp_wr, 8192},
    {"max_cqe", &Limits::max_cqe, 1 << 20},
    {"max_mr", &Limits::max_mr, 65535},
    {"host_mr", &Limits::host_mr, 0},
    {"max_mr_size", &Limits::max_mr_size, 64 * kGiB},
    {"region_bits", &Limits::region_bits, 32},
    {"max_msg", &Limits::max_msg, 0xffffffff},
    {"max_send_sge", &Limits::max_send_sge, 6},
    {"max_recv_sge", &Limits::max_recv_sge, 1},
    {"max_inline", &Limits::max_inline, 96},
    {"max_rd_atom", &Limits::max_rd_atom, 128},
    {"atomics", &Limits::atomics, 0},
    {"memlock", &Limits::memlock, UINT64_MAX},
    {"private_data", &Limits::private_data, 255},
    {"comp_vectors", &Limits::comp_vectors, 31},
    {"retry_ms", &Limits::retry_ms, 300},
    {"command_us", &Limits::command_us, 0},
    {"connect_ms", &Limits::connect_ms, 10000},
    {"small_send", &Limits::small_send, 2048},
    {"refused", &Limits::refused, 0},
    {"destroy_waits", &Limits::destroy_waits, 1},
    {"first_port", &Limits::first_port, 32768},
    {"ports", &Limits::ports, 28000},
    {"tcp", &Limits::tcp, 0},
    {"port_mapper", &Limits::port_mapper, 0},
    {"loopback", &Limits::loopback, 0},
    {"late", &Limits::late, 0},
    {"peermem", &Limits::peermem, 1},
    {"dmabuf", &Limits::dmabuf, 0},
    {"posted", &Limits::posted, 0},
    {"passive_first", &Limits::passive_first, 0},
};

const char* variable(const std::string& name) {
  std::string upper = "SOFTERDMA_" + name;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return std::getenv(upper.c_str());
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

uint32_t first_address() {
  ifaddrs* list = nullptr;
  uint32_t found = htonl(INADDR_LOOPBACK);
  if (getifaddrs(&list) != 0) return found;
  for (ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0) continue;
    found = reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr;
    break;
  }
  freeifaddrs(list);
  return found;
}

/// Applies one name=value of a device. Returns false if the name or the value is unknown.
bool apply(DeviceConfig& device, const std::string& name, const std::string& value) {
  if (name == "ip") return inet_pton(AF_INET, value.c_str(), &device.ip) == 1;
  if (name == "state") {
    device.up = value != "down";
    return value == "down" || value == "up" || value == "active";
  }
  if (name == "personality") {
    device.personality = value == "compat" ? Personality::compat : Personality::standard;
    return value == "compat" || value == "standard";
  }
  if (name == "flush") {
    device.flush = value == "none" ? Flush::none : value == "half" ? Flush::half : Flush::full;
    return value == "none" || value == "half" || value == "full";
  }
  for (const Knob& knob : kKnobs) {
    if (name != knob.name) continue;
    device.limits.*knob.member = parse_number(value, device.limits.*knob.member);
    return !value.empty() && std::isdigit(static_cast<unsigned char>(value[0])) != 0;
  }
  return false;
}

DeviceConfig device_defaults() {
  DeviceConfig device{};
  device.up = true;
  for (const Knob& knob : kKnobs) {
    device.limits.*knob.member = knob.value;
    const char* text = variable(knob.name);
    if (text != nullptr && !apply(device, knob.name, text)) {
      note("SOFTERDMA variable %s has no number in it: %s", knob.name, text);
    }
  }
  for (const char* name : {"personality", "flush"}) {
    const char* text = variable(name);
    if (text != nullptr && *text != '\0' && !apply(device, name, text)) {
      note("SOFTERDMA variable %s cannot be '%s'", name, text);
    }
  }
  return device;
}

}  // namespace

uint64_t parse_number(const std::string& text, uint64_t fallback) {
  char* end = nullptr;
  uint64_t value = std::strtoull(text.c_str(), &end, 0);
  if (end == text.c_str()) return fallback;
  switch (std::toupper(static_cast<unsigned char>(*end))) {
    case 'K':
      return value << 10;
    case 'M':
      return value << 20;
    case 'G':
      return value << 30;
    default:
      return value;
  }
}

std::string ip_text(uint32_t ip) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &ip, text, sizeof text);
  return text;
}

std::vector<DeviceConfig> configured_devices() {
  const char* text = variable("devices");
  std::vector<DeviceConfig> devices;
  for (const std::string& entry : split(text == nullptr || *text == '\0' ? "erdma_0" : text, ';')) {
    std::vector<std::string> fields = split(entry, ',');
    if (fields.empty() || fields[0] == "none") continue;
    DeviceConfig device = device_defaults();
    device.name = fields[0].substr(0, 60);
    for (size_t i = 1; i < fields.size(); ++i) {
      size_t equals = fields[i].find('=');
      if (equals == std::string::npos ||
          !apply(device, fields[i].substr(0, equals), fields[i].substr(equals + 1))) {
        note("SOFTERDMA_DEVICES: '%s' is not understood", fields[i].c_str());
      }
    }
    if (device.ip == 0) device.ip = first_address();
    devices.push_back(device);
  }
  return devices;
}

std::string state_folder() {
  const char* text = variable("dir");
  if (text != nullptr && *text != '\0') return text;
  const char* base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  return std::string(base) + "/softerdma-" + std::to_string(getuid());
}

}  // namespace softerdma
