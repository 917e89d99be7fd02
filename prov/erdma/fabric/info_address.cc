#include "fabric/info_address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <memory>

#include <rdma/fi_errno.h>

#include "fabric/device.h"
#include "fabric/info_refusal.h"
#include "util/fd.h"
#include "util/result.h"

namespace erdma::fabric {
namespace {

using util::Result;
using util::SocketAddress;

sa_family_t family_of(uint32_t format) noexcept {
  if (format == FI_SOCKADDR_IN) return AF_INET;
  return format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_UNSPEC;
}

/// The family to use if the application left it open: IPv4, unless only IPv6 has an address that
/// other hosts can use.
sa_family_t default_family(const LocalAddresses& local) noexcept {
  const SocketAddress v4 = local.primary(AF_INET);
  const SocketAddress v6 = local.primary(AF_INET6);
  const bool v6_only = (!v4.set() || v4.loopback()) && v6.set() && !v6.loopback();
  return v6_only ? AF_INET6 : AF_INET;
}

/// The host's own IP; loopback if it has none.
SocketAddress own_address(const LocalAddresses& local, sa_family_t family) noexcept {
  if (family == AF_UNSPEC) family = default_family(local);
  const SocketAddress primary = local.primary(family);
  if (primary.set()) return primary;
  const in_addr loopback{htonl(INADDR_LOOPBACK)};
  return family == AF_INET6 ? SocketAddress::from_ip(AF_INET6, &in6addr_loopback, 0)
                            : SocketAddress::from_ip(AF_INET, &loopback, 0);
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
    ERDMA_REFUSE("cannot resolve node %s service %s: %s", node ? node : "(none)",
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
  if (!chosen) return -FI_ENODATA;
  return SocketAddress::from_sockaddr(chosen->ai_addr, chosen->ai_addrlen);
}

Result<SocketAddress> hinted(const char* attribute, const void* address, size_t length,
                             sa_family_t family) {
  const SocketAddress result = SocketAddress::from_sockaddr(address, length);
  if (result.set() && (family == AF_UNSPEC || family == result.family())) return result;
  ERDMA_REFUSE("hints->%s (%zu bytes) is not an address of the family in use", attribute, length);
  return -FI_ENODATA;
}

}  // namespace

int resolve_addresses(const char* node, const char* service, uint64_t flags, const fi_info* hints,
                      InfoAddresses& result) {
  if ((flags & FI_SOURCE) && !node && !service) {
    ERDMA_REFUSE("FI_SOURCE is set, but neither node nor service is");
    return -FI_EINVAL;
  }
  sa_family_t family = hints ? family_of(hints->addr_format) : sa_family_t{AF_UNSPEC};

  const bool names_source = flags & FI_SOURCE;
  const auto find = [&](bool named, const char* attribute, const void* hint,
                        size_t length) -> Result<SocketAddress> {
    if (named) return resolve(node, service, flags, family);
    return hint ? hinted(attribute, hint, length, family) : SocketAddress();
  };
  Result<SocketAddress> destination =
      find(!names_source && (node || service), "dest_addr", hints ? hints->dest_addr : nullptr,
           hints ? hints->dest_addrlen : 0);
  if (!destination) return destination.error();
  if (family == AF_UNSPEC) family = destination->family();

  Result<SocketAddress> found = find(names_source, "src_addr", hints ? hints->src_addr : nullptr,
                                     hints ? hints->src_addrlen : 0);
  if (!found) return found.error();
  // getaddrinfo() adds a wildcard to a service without a node. Then each host, and each NIC, uses
  // the family that it has.
  const bool any_family = names_source && !node;
  if (family == AF_UNSPEC && !any_family) family = found->family();
  result = {*found, *destination, family};
  return 0;
}

SocketAddress source_on_host(const LocalAddresses& local, const InfoAddresses& asked) {
  if (!asked.source.set() || asked.source.wildcard()) {
    SocketAddress own = own_address(local, asked.family);
    own.set_port(asked.source.set() ? asked.source.port() : 0);
    return own;
  }
  if (local.contains(asked.source)) return asked.source;
  ERDMA_REFUSE("source address %s does not belong to this host",
               asked.source.host_string().c_str());
  return {};
}

SocketAddress source_on_nic(const std::vector<SocketAddress>& addresses,
                            const InfoAddresses& asked) noexcept {
  const bool any = !asked.source.set() || asked.source.wildcard();
  SocketAddress own = any ? preferred_address(addresses, asked.family) : SocketAddress();
  for (const SocketAddress& address : addresses)
    if (!any && address.same_host(asked.source)) own = address;
  if (own.set()) own.set_port(asked.source.set() ? asked.source.port() : 0);
  return own;
}

SocketAddress source_by_route(const SocketAddress& destination) noexcept {
  if (!destination.set()) return {};
  // connect() of a datagram socket sends nothing; it only makes the kernel choose a route.
  const util::Fd socket(::socket(destination.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress target = destination;
  if (!target.port()) target.set_port(9);
  if (!socket || connect(socket.get(), target.data(), socklen_t(target.size()))) return {};
  return SocketAddress::of(socket.get(), getsockname);
}

}  // namespace erdma::fabric
