#include "transport/shm/shm_transport.h"

#include <new>

#include <rdma/fi_errno.h>

#include "transport/shm/core.h"
#include "util/process_epoch.h"

namespace erdma::transport::shm {

util::Result<std::unique_ptr<ShmTransport>> ShmTransport::open(const Options& options,
                                                               const util::SocketAddress& name,
                                                               CmaCalls* calls,
                                                               const util::Clock* clock) {
  auto core = Core::open(options, name, calls, clock);
  if (!core) return core.error();
  return std::unique_ptr<ShmTransport>(new ShmTransport(std::move(*core)));
}

ShmTransport::ShmTransport(std::unique_ptr<Core> core) noexcept : x_core(std::move(core)) {}

// In a forked child the rest is left alone: the thread does not exist here, the shared memory is
// not mapped, and a lock may be held for ever.
ShmTransport::~ShmTransport() {
  if (x_core->epoch() != util::process_epoch()) x_core.release()->abandon();
}

const util::SocketAddress& ShmTransport::name() const noexcept {
  return x_core->name();
}
const Counters& ShmTransport::counters() const noexcept {
  return x_core->counters();
}
int ShmTransport::poll(Sink& sink) noexcept {
  return x_core->poll(sink);
}
util::Result<Link*> ShmTransport::link_to(const util::SocketAddress& address) noexcept {
  return x_core->link_to(address);
}
int ShmTransport::wait_fd() const noexcept {
  return x_core->wait_fd();
}
bool ShmTransport::arm() noexcept {
  return x_core->arm();
}
void ShmTransport::disarm() noexcept {
  x_core->disarm();
}
void ShmTransport::shutdown() noexcept {
  x_core->shutdown();
}

}  // namespace erdma::transport::shm
