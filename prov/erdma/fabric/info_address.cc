#include "fabric/info_address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <memory>

#include <rdma/fi_errno.h>

#include "util/log.h"
#include "util/result.h"

namespace erdma::fabric {
namespace {

using util::Result;
using util::SocketAddress;

sa_family_t family_of(uint32_t format) noexcept {
  if (format == FI_SOCKADDR_IN) return AF_INET;
  return format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_UNSPEC;
}

/// Where either family would do, IPv4 is it, as far as the host has one to be known by.
sa_family_t default_family(const LocalAddresses& local) noexcept {
  const SocketAddress v4 = local.primary(AF_INET);
  const SocketAddress v6 = local.primary(AF_INET6);
  const bool v6_only = (!v4.set() || v4.loopback()) && v6.set() && !v6.loopback();
  return v6_only ? AF_INET6 : AF_INET;
}

/// The host's own IP; loopback on a host without any.
SocketAddress own_address(const LocalAddresses& local, sa_family_t family) noexcept {
  if (family == AF_UNSPEC) family = default_family(local);
  const SocketAddress primary = local.primary(family);
  if (primary.set()) return primary;
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_addr = in6addr_loopback;
  return family == AF_INET6 ? SocketAddress::from_sockaddr(&in6, sizeof(in6))
                            : SocketAddress::from_sockaddr(&in, sizeof(in));
}

Result<SocketAddress> resolve(const char* node, const char* service, uint64_t flags,
                              sa_family_t family) {
  addrinfo wanted{};
  wanted.ai_family = family;
  wanted.ai_socktype = SOCK_STREAM;
  if (flags & FI_SOURCE) wanted.ai_flags |= AI_PASSIVE;
  if (flags & FI_NUMERICHOST) wanted.ai_flags |= AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (const int rc = getaddrinfo(node, service, &wanted, &list); rc != 0) {
    ERDMA_INFO(CORE, "cannot resolve node %s service %s: %s\n", node ? node : "(none)",
               service ? service : "(none)", gai_strerror(rc));
    return -FI_ENODATA;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  const addrinfo* chosen = list;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET) continue;
    chosen = entry;
    break;
  }
  return SocketAddress::from_sockaddr(chosen->ai_addr, chosen->ai_addrlen);
}

Result<SocketAddress> hinted(const char* attribute, const void* address, size_t length,
                             sa_family_t family) {
  const SocketAddress result = SocketAddress::from_sockaddr(address, length);
  if (result.set() && (family == AF_UNSPEC || family == result.family())) return result;
  ERDMA_INFO(CORE, "hints->%s (%zu bytes) is not an address of the family in use\n", attribute,
             length);
  return -FI_ENODATA;
}

Result<SocketAddress> find_destination(const char* node, const char* service, uint64_t flags,
                                       const fi_info* hints, sa_family_t family) {
  if (!(flags & FI_SOURCE) && (node || service)) return resolve(node, service, flags, family);
  if (hints && hints->dest_addr)
    return hinted("dest_addr", hints->dest_addr, hints->dest_addrlen, family);
  return SocketAddress();
}

Result<SocketAddress> find_source(const char* node, const char* service, uint64_t flags,
                                  const fi_info* hints, sa_family_t family) {
  if (flags & FI_SOURCE) return resolve(node, service, flags, family);
  if (hints && hints->src_addr)
    return hinted("src_addr", hints->src_addr, hints->src_addrlen, family);
  return SocketAddress();
}

/// Replaces an unset or wildcard source by the host's own IP, keeping the port.
SocketAddress complete_source(const LocalAddresses& local, const SocketAddress& source,
                              sa_family_t family) noexcept {
  if (source.set() && !source.wildcard()) return source;
  SocketAddress own = own_address(local, source.set() ? source.family() : family);
  own.set_port(source.set() ? source.port() : 0);
  return own;
}

}  // namespace

int resolve_addresses(const LocalAddresses& local, const char* node, const char* service,
                      uint64_t flags, const fi_info* hints, InfoAddresses& result) {
  if ((flags & FI_SOURCE) && !node && !service) {
    ERDMA_INFO(CORE, "FI_SOURCE is set, but neither node nor service is\n");
    return -FI_EINVAL;
  }
  sa_family_t family = hints ? family_of(hints->addr_format) : sa_family_t{AF_UNSPEC};

  Result<SocketAddress> destination = find_destination(node, service, flags, hints, family);
  if (!destination) return destination.error();
  if (family == AF_UNSPEC) family = destination->family();

  Result<SocketAddress> found = find_source(node, service, flags, hints, family);
  if (!found) return found.error();
  const SocketAddress source = complete_source(local, *found, family);
  if (!local.contains(source)) {
    ERDMA_INFO(CORE, "source address %s is none of this host\n", source.host_string().c_str());
    return -FI_ENODATA;
  }
  result = {source, *destination};
  return 0;
}

}  // namespace erdma::fabric
