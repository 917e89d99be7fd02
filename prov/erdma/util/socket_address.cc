#include "util/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <cstdio>
#include <cstring>

namespace erdma::util {

SocketAddress SocketAddress::of(int socket, int (*get)(int, sockaddr*, socklen_t*)) noexcept {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (get(socket, reinterpret_cast<sockaddr*>(&storage), &length)) return {};
  return from_sockaddr(&storage, length);
}

SocketAddress SocketAddress::from_sockaddr(const void* address, size_t length) noexcept {
  SocketAddress result;
  sa_family_t family = AF_UNSPEC;
  if (!address || length < sizeof(family)) return result;
  std::memcpy(&family, address, sizeof(family));
  if (family == AF_INET && length >= sizeof(sockaddr_in)) {
    std::memcpy(&result.x_storage.in, address, sizeof(sockaddr_in));
    std::memset(result.x_storage.in.sin_zero, 0, sizeof(result.x_storage.in.sin_zero));
  } else if (family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    std::memcpy(&result.x_storage.in6, address, sizeof(sockaddr_in6));
    result.x_storage.in6.sin6_flowinfo = 0;
  }
  return result;
}

SocketAddress SocketAddress::from_ip(sa_family_t family, const void* ip, uint16_t port,
                                     uint32_t scope) noexcept {
  SocketAddress result;
  result.x_storage.any.sa_family = family;
  result.set_port(port);
  if (family == AF_INET6) {
    std::memcpy(&result.x_storage.in6.sin6_addr, ip, sizeof(in6_addr));
    result.x_storage.in6.sin6_scope_id = scope;
  } else {
    std::memcpy(&result.x_storage.in.sin_addr, ip, sizeof(in_addr));
  }
  return result;
}

std::span<const std::byte> SocketAddress::ip() const noexcept {
  if (family() == AF_INET6) return std::as_bytes(std::span(&x_storage.in6.sin6_addr, 1));
  return std::as_bytes(std::span(&x_storage.in.sin_addr, set() ? 1 : 0));
}

uint32_t SocketAddress::scope() const noexcept {
  return family() == AF_INET6 ? x_storage.in6.sin6_scope_id : 0;
}

// sin_port and sin6_port share their offset.
uint16_t SocketAddress::port() const noexcept {
  return ntohs(x_storage.in.sin_port);
}
void SocketAddress::set_port(uint16_t port) noexcept {
  x_storage.in.sin_port = htons(port);
}

bool SocketAddress::wildcard() const noexcept {
  if (family() == AF_INET) return x_storage.in.sin_addr.s_addr == htonl(INADDR_ANY);
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&x_storage.in6.sin6_addr);
}

bool SocketAddress::loopback() const noexcept {
  if (family() == AF_INET) return (ntohl(x_storage.in.sin_addr.s_addr) >> 24) == 127;
  if (family() != AF_INET6) return false;
  const in6_addr& ip = x_storage.in6.sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127);
}

bool SocketAddress::link_local() const noexcept {
  if (family() == AF_INET) return (ntohl(x_storage.in.sin_addr.s_addr) >> 16) == 0xA9FE;
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&x_storage.in6.sin6_addr);
}

bool SocketAddress::same_host(const SocketAddress& other) const noexcept {
  if (family() != other.family()) return false;
  if (family() == AF_INET)
    return x_storage.in.sin_addr.s_addr == other.x_storage.in.sin_addr.s_addr;
  if (family() == AF_INET6)
    return IN6_ARE_ADDR_EQUAL(&x_storage.in6.sin6_addr, &other.x_storage.in6.sin6_addr) &&
           x_storage.in6.sin6_scope_id == other.x_storage.in6.sin6_scope_id;
  return true;
}

SocketAddress SocketAddress::with_scope_of(const SocketAddress& own) const noexcept {
  SocketAddress result = *this;
  if (family() == AF_INET6 && own.family() == AF_INET6 && link_local() && own.link_local())
    result.x_storage.in6.sin6_scope_id = own.scope();
  return result;
}

bool SocketAddress::operator==(const SocketAddress& other) const noexcept {
  return same_host(other) && (!set() || port() == other.port());
}

uint64_t SocketAddress::hash() const noexcept {
  uint64_t words[3] = {family(), 0, 0};
  if (family() == AF_INET) {
    words[1] = x_storage.in.sin_addr.s_addr;
  } else if (family() == AF_INET6) {
    std::memcpy(&words[1], &x_storage.in6.sin6_addr, 16);
  }
  uint64_t hash = (uint64_t(port()) << 32) ^ words[0];
  for (const uint64_t word : {words[1], words[2]}) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

std::string SocketAddress::host_string() const {
  char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 2] = "unset";
  if (family() == AF_INET) inet_ntop(AF_INET, &x_storage.in.sin_addr, text, sizeof(text));
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &x_storage.in6.sin6_addr, text, sizeof(text));
    if (x_storage.in6.sin6_scope_id)
      return std::string(text) + "%" + std::to_string(x_storage.in6.sin6_scope_id);
  }
  return text;
}

AddressText SocketAddress::to_string() const noexcept {
  AddressText text;
  char host[INET6_ADDRSTRLEN] = "";
  char zone[16] = "";
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &x_storage.in6.sin6_addr, host, sizeof(host));
    if (x_storage.in6.sin6_scope_id)
      std::snprintf(zone, sizeof(zone), "%%%u", x_storage.in6.sin6_scope_id);
    std::snprintf(text.x_text, sizeof(text.x_text), "[%s%s]:%u", host, zone, port());
  } else if (set()) {
    inet_ntop(AF_INET, &x_storage.in.sin_addr, host, sizeof(host));
    std::snprintf(text.x_text, sizeof(text.x_text), "%s:%u", host, port());
  }
  return text;
}

}  // namespace erdma::util
