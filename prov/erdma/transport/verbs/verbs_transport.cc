#include "transport/verbs/verbs_transport.h"

#include <new>

#include "transport/verbs/core.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {

util::Result<std::unique_ptr<VerbsTransport>> VerbsTransport::open(const Options& options,
                                                                   Device& device,
                                                                   RegistrationCache& cache,
                                                                   const util::SocketAddress& name,
                                                                   const util::Clock* clock) {
  auto core = Core::open(options, device, cache, name, clock, &Connector::start);
  if (!core) return core.error();
  return std::unique_ptr<VerbsTransport>(new VerbsTransport(std::move(*core)));
}

VerbsTransport::VerbsTransport(std::unique_ptr<Core> core) noexcept : x_core(std::move(core)) {}

// In a forked child the rest is left alone: the thread does not exist here, the memory of the
// transport is not mapped, and the device's objects are the parent's.
VerbsTransport::~VerbsTransport() {
  if (x_core->epoch() != util::process_epoch()) x_core.release()->abandon();
}

const util::SocketAddress& VerbsTransport::name() const noexcept {
  return x_core->name();
}
const Counters& VerbsTransport::counters() const noexcept {
  return x_core->counters();
}
int VerbsTransport::poll(Sink& sink) noexcept {
  return x_core->poll(sink);
}
util::Result<Link*> VerbsTransport::link_to(const util::SocketAddress& address) noexcept {
  return x_core->link_to(address);
}
int VerbsTransport::wait_fd() const noexcept {
  return x_core->wait_fd();
}
bool VerbsTransport::arm() noexcept {
  return x_core->arm();
}
void VerbsTransport::disarm() noexcept {
  x_core->disarm();
}
void VerbsTransport::shutdown() noexcept {
  x_core->shutdown();
}

}  // namespace erdma::transport::verbs
