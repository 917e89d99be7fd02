#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace erdma::util {

/// The text of an address, made without allocation: functions that must not throw use it in log
/// lines.
class AddressText {
 public:
  const char* c_str() const noexcept { return x_text; }
  operator std::string() const { return x_text; }

 private:
  friend class SocketAddress;
  AddressText() noexcept = default;
  char x_text[80] = "unset";  ///< the longest text has 64 bytes, with a zone of 10 digits
};

/// An IPv4 or IPv6 address with port: the name of an endpoint. Regular value type, 28 bytes.
/// Unset = family AF_UNSPEC. Flow label is ignored; an IPv4-mapped IPv6 address stays IPv6.
class SocketAddress {
 public:
  SocketAddress() noexcept : x_storage{} {}

  /// Copies a sockaddr of `length` bytes. The result is unset if the family is neither AF_INET nor
  /// AF_INET6, or if `length` is too small for it.
  static SocketAddress from_sockaddr(const void* address, size_t length) noexcept;
  /// An IP as ip() returns it, of AF_INET or AF_INET6. `scope`: of IPv6 only.
  static SocketAddress from_ip(sa_family_t family, const void* ip, uint16_t port,
                               uint32_t scope = 0) noexcept;
  /// The result of getsockname(2) or getpeername(2) for the socket; unset on failure.
  static SocketAddress of(int socket, int (*get)(int, sockaddr*, socklen_t*)) noexcept;
  /// Bytes of a sockaddr: 16 for IPv4, 28 for IPv6, 0 for other families.
  static constexpr size_t size_of(sa_family_t family) noexcept {
    return family == AF_INET ? sizeof(sockaddr_in) : family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
  }

  sa_family_t family() const noexcept { return x_storage.any.sa_family; }
  bool set() const noexcept { return family() != AF_UNSPEC; }
  const sockaddr* data() const noexcept { return &x_storage.any; }
  /// Bytes of the sockaddr; 0 when unset.
  size_t size() const noexcept { return size_of(family()); }
  /// The IP in network byte order: 4 bytes for IPv4, 16 for IPv6, none when unset.
  std::span<const std::byte> ip() const noexcept;
  uint32_t scope() const noexcept;  ///< of IPv6; 0: none
  uint16_t port() const noexcept;   ///< host order
  void set_port(uint16_t port) noexcept;
  bool wildcard() const noexcept;                             ///< 0.0.0.0 or ::
  bool loopback() const noexcept;                             ///< 127/8, ::1 or ::ffff:127/104
  bool link_local() const noexcept;                           ///< 169.254/16 or fe80::/10
  bool same_host(const SocketAddress& other) const noexcept;  ///< equal except for the port
  /// The same address as `own` reaches it. Scopes are local to a host: if both are link-local
  /// addresses of IPv6, they belong to one link, and the scope of `own` applies.
  SocketAddress with_scope_of(const SocketAddress& own) const noexcept;
  bool operator==(const SocketAddress& other) const noexcept;
  uint64_t hash() const noexcept;
  /// "10.0.0.1:5000" or "[fe80::1%2]:5000".
  AddressText to_string() const noexcept;
  /// The same without port and brackets.
  std::string host_string() const;

 private:
  union {
    sockaddr any;
    sockaddr_in in;
    sockaddr_in6 in6;
  } x_storage;
};

struct SocketAddressHash {
  size_t operator()(const SocketAddress& address) const noexcept { return address.hash(); }
};

}  // namespace erdma::util
