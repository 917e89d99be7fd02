#include "fi_erdma/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "fi_erdma/descriptor.h"

namespace fi_erdma {
namespace {

/// The bytes of an IP address; empty for an address of another kind.
std::string_view ip_of(const sockaddr& address) {
  const void* ip = nullptr;
  size_t length = 0;
  if (address.sa_family == AF_INET)
    ip = &reinterpret_cast<const sockaddr_in&>(address).sin_addr, length = sizeof(in_addr);
  if (address.sa_family == AF_INET6)
    ip = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, length = sizeof(in6_addr);
  return {static_cast<const char*>(ip), length};
}

}  // namespace

std::optional<Interface> interface_of(std::string_view name) {
  sockaddr_storage own{};
  std::memcpy(&own, name.data(), std::min(name.size(), sizeof(own)));
  const std::string_view wanted = ip_of(reinterpret_cast<const sockaddr&>(own));
  ifaddrs* list = nullptr;
  if (wanted.empty() || getifaddrs(&list)) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  for (const ifaddrs* each = list; each; each = each->ifa_next) {
    if (!each->ifa_addr || ip_of(*each->ifa_addr) != wanted) continue;
    const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, each->ifa_name, sizeof(request.ifr_name) - 1);
    if (ioctl(socket.get(), SIOCGIFMTU, &request)) return std::nullopt;
    return Interface{each->ifa_name, unsigned(request.ifr_mtu)};
  }
  return std::nullopt;
}

}  // namespace fi_erdma
