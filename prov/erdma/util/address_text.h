#pragma once

#include <arpa/inet.h>

#include <cstdio>
#include <cstring>

#include "util/socket_address.h"

namespace erdma::util {

/// SocketAddress::to_string() without allocating, for lines of noexcept functions:
/// AddressText(address).c_str() within one expression.
class AddressText {
 public:
  explicit AddressText(const SocketAddress& address) noexcept {
    const sockaddr* const any = address.data();
    char host[INET6_ADDRSTRLEN] = "?";
    if (address.family() == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(any)->sin_addr, host, sizeof(host));
      std::snprintf(x_text, sizeof(x_text), "%s:%u", host, unsigned(address.port()));
    } else if (address.family() == AF_INET6) {
      const auto* const in6 = reinterpret_cast<const sockaddr_in6*>(any);
      inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
      char scope[12] = "";
      if (in6->sin6_scope_id) std::snprintf(scope, sizeof(scope), "%%%u", in6->sin6_scope_id);
      std::snprintf(x_text, sizeof(x_text), "[%s%s]:%u", host, scope, unsigned(address.port()));
    } else {
      std::strcpy(x_text, "unset");
    }
  }
  AddressText(const AddressText&) = delete;
  AddressText& operator=(const AddressText&) = delete;
  const char* c_str() const noexcept { return x_text; }

 private:
  char x_text[INET6_ADDRSTRLEN + 24];
};

}  // namespace erdma::util
