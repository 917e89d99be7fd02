#include "fabric/host_range.h"

#include <netdb.h>

#include <cctype>
#include <climits>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include <rdma/fi_errno.h>

namespace erdma::fabric {
namespace {

using util::SocketAddress;

std::string scheme_of(sa_family_t family) {
  return family == AF_INET6 ? "fi_sockaddr_in6://" : "fi_sockaddr_in://";
}

SocketAddress look_up(sa_family_t family, const char* node, const char* service,
                      int flags) noexcept {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(node, service, &hints, &found) != 0 || !found) return {};
  const SocketAddress address = SocketAddress::from_sockaddr(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

/// The port of a number or a service name; -1: it is neither.
int port_of(sa_family_t family, const char* service) noexcept {
  int port = 0;
  const char* at = service;
  for (; *at >= '0' && *at <= '9' && port <= UINT16_MAX; ++at) port = port * 10 + (*at - '0');
  if (at != service) return *at || port > UINT16_MAX ? -1 : port;
  if (!std::isalpha(static_cast<unsigned char>(*at))) return -1;
  const SocketAddress found = look_up(family, nullptr, service, 0);
  return found.set() ? found.port() : -1;
}

/// The n-th name after `name`: "node09", 2 → "node11". Leading zeros are kept. Empty if the name
/// does not end in a number, or in one of more than 15 digits.
std::optional<std::string> nth_name(std::string_view name, size_t n) {
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  const std::string suffix(name.substr(digits));
  if (suffix.empty() || suffix.size() > 15) return std::nullopt;
  std::string number = std::to_string(std::stoull(suffix) + n);
  if (number.size() < suffix.size()) number.insert(0, suffix.size() - number.size(), '0');
  return std::string(name.substr(0, digits)) + number;
}

/// Adds n to an address. False: the result is beyond the last address of the family.
bool advance(SocketAddress& address, size_t n) noexcept {
  const std::span<const std::byte> ip = address.ip();
  uint8_t bytes[sizeof(in6_addr)] = {};
  std::memcpy(bytes, ip.data(), ip.size());
  uint64_t carry = n;
  for (size_t i = ip.size(); i-- > 0;) {
    carry += bytes[i];
    bytes[i] = static_cast<uint8_t>(carry);
    carry >>= 8;
  }
  address = SocketAddress::from_ip(address.family(), bytes, address.port(), address.scope());
  return carry == 0;
}

}  // namespace

util::Result<HostRange> HostRange::resolve(sa_family_t family, const char* node, size_t nodes,
                                           const char* service, size_t services) {
  if (!node || !service || !nodes || !services || nodes > size_t{INT_MAX} / services)
    return -FI_EINVAL;
  const int port = port_of(family, service);
  if (port < 0 || services - 1 > size_t(UINT16_MAX - port)) return -FI_EINVAL;
  HostRange range(nodes, services);
  range.x_first_port = static_cast<uint16_t>(port);

  SocketAddress last = look_up(family, node, nullptr, AI_NUMERICHOST);
  range.x_numeric = last.set();
  if (range.x_numeric) {
    range.x_hosts.push_back(last);
    return advance(last, nodes - 1) ? util::Result<HostRange>(std::move(range)) : -FI_EINVAL;
  }
  for (size_t n = 0; n < nodes; ++n) {
    const std::optional<std::string> name = nodes == 1 ? std::string(node) : nth_name(node, n);
    if (!name) return -FI_EINVAL;
    range.x_hosts.push_back(look_up(family, name->c_str(), nullptr, 0));
  }
  return range;
}

util::Result<HostRange> HostRange::resolve_uri(sa_family_t family, const char* uri) {
  const std::string scheme = scheme_of(family);
  std::string host = uri ? uri : "";
  if (!host.starts_with(scheme)) return -FI_EINVAL;
  host.erase(0, scheme.size());
  const size_t colon = host.rfind(':');
  if (colon == std::string::npos) return -FI_EINVAL;
  const std::string service = host.substr(colon + 1);
  host.resize(colon);
  if (family == AF_INET6 && host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return resolve(family, host.c_str(), 1, service.c_str(), 1);
}

SocketAddress HostRange::at(size_t i) const noexcept {
  const size_t node = i / x_services;
  SocketAddress address = x_hosts[x_numeric ? 0 : node];
  if (x_numeric) advance(address, node);
  if (address.set()) address.set_port(static_cast<uint16_t>(x_first_port + i % x_services));
  return address;
}

std::string to_uri(const SocketAddress& address) {
  if (!address.set()) return {};
  return scheme_of(address.family()) + address.to_string().c_str();
}

}  // namespace erdma::fabric
