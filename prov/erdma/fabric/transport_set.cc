#include "fabric/transport_set.h"

#include <rdma/fi_errno.h>

#include "fabric/endpoint_statistics.h"
#include "util/log.h"

namespace erdma::fabric {

transport::Transport* TransportSet::transport_for(const util::SocketAddress& address) noexcept {
  // With device memory the endpoint reaches itself through the NIC: a read of its own memory
  // flushes the NIC's writes.
  if (self && address == name) return device_memory && nic ? nic : self;
  if (shm && local->contains(address)) return shm;
  return nic;
}

util::Result<transport::Link*> TransportSet::link_by(transport::Transport& transport,
                                                     const util::SocketAddress& address) noexcept {
  util::Result<transport::Link*> link = transport.link_to(address);
  if (link && statistics)
    statistics->leads(address, &transport == self ? "self" : &transport == shm ? "shm" : "nic");
  return link;
}

util::Result<transport::Link*> TransportSet::route(const util::SocketAddress& address) noexcept {
  transport::Transport* const transport = transport_for(address);
  if (!transport) return -FI_EHOSTUNREACH;
  return link_by(*transport, address);
}

/// The link through the NIC to a local peer that shared memory can't reach, because its socket does
/// not exist or belongs to another user. Null: there is none, or the peer has closed
/// (-FI_ESHUTDOWN).
transport::Link* TransportSet::fallback(const util::SocketAddress& address, int status) noexcept {
  const bool by_shm = shm && local->contains(address);
  if (!nic || !by_shm || status == -FI_ESHUTDOWN) return nullptr;
  util::Result<transport::Link*> link = link_by(*nic, address);
  if (!link) return nullptr;
  if (!x_fallback_logged)
    ERDMA_NOTICE(local_path, EP_CTRL,
                 "%s cannot be reached through shared memory (%s): it is reached through the NIC, "
                 "and so are other peers with this fault. Local peers need the same user, the same "
                 "network namespace and the same FI_ERDMA_SHM",
                 address.to_string().c_str(), fi_strerror(-status));
  x_fallback_logged = true;
  return *link;
}

}  // namespace erdma::fabric
