#include "fabric/endpoint_driver.h"

#include <utility>

#include "fabric/auto_progress.h"

namespace erdma::fabric {
EndpointDriver::EndpointDriver(Domain& domain, void* context, bool with_device_memory) noexcept
    : x_domain(domain),
      x_ports(*this, context),
      x_one_sided{x_transports.name,    domain.memory_regions().of_endpoint(with_device_memory),
                  x_ports.reads,        x_ports.writes,
                  x_ports.remote_reads, x_ports.remote_writes} {}

// --- start and stop -----------------------------------------------------------------------------

void EndpointDriver::start(const protocol::EngineConfig& config, TransportSet transports,
                           protocol::AddressBook& addresses, protocol::SharedReceives* shared) {
  x_domain.memory_regions().add(*this);
  x_domain.works().add(*this);
  x_transports = std::move(transports);
  x_engine =
      std::make_unique<protocol::Engine>(config, addresses, x_transports, x_transports.pointers(),
                                         x_ports.sent, x_ports.received, shared);
  x_engine->enable_one_sided(x_one_sided);
  x_ports.sources_changed();
}

Detached EndpointDriver::detach() noexcept {
  x_domain.works().remove(*this);
  x_domain.memory_regions().remove(*this);
  Detached rest{owned(), std::move(x_engine), std::exchange(x_transports, {})};
  x_ports.sources_changed();
  return rest;
}

void Detached::end_transports() noexcept {
  if (engine && owned) transports.shutdown();
  transports = {};
}

// --- progress and sleep -------------------------------------------------------------------------

int EndpointDriver::progress() noexcept {
  if (x_engine && owned() && !x_attention && !x_engine->just_received()) [[likely]]
    return x_engine->progress();
  return progress_with_care();
}

/// Not inlined, so that the calls that find nothing to do stay short.
[[gnu::noinline]] int EndpointDriver::progress_with_care() noexcept {
  if (!x_engine || !owned()) return 0;
  if (!x_attention) return x_engine->needs_no_poll() ? 0 : x_engine->progress();
  if (x_attention & kArmed && !slept_on()) disarm();
  const int steps = x_engine->progress();
  worked();
  return steps;
}

/// Called after a step of the engine while works wait or threads may sleep. The step may have left
/// work that a sleeping thread must do, so the endpoint is armed again, or the sleepers are woken.
/// Operations that this endpoint asked targets to execute are taken back, as in arm().
void EndpointDriver::attend(bool works_may_run) noexcept {
  if (works_may_run && x_attention & kWorks) x_domain.works().run();
  if (!(x_attention & kArmed)) return;
  if (!slept_on()) return disarm();
  (void)arm();
}

/// True if a thread relies on the wake-up that arm() promised. Then the endpoint must stay armed
/// after progress by other threads.
bool EndpointDriver::slept_on() const noexcept {
  return x_domain.auto_progress() || x_ports.sleeping();
}

bool EndpointDriver::arm() noexcept {
  if (!x_engine || !owned()) return true;
  x_attention |= kArmed;
  if (x_engine->execute_all_retractable() == 0 && x_transports.arm()) return true;
  // The endpoint is not armed, so threads that sleep in reliance on it must wake.
  x_ports.wake();
  if (AutoProgress* driver = x_domain.auto_progress()) driver->wake();
  return false;
}

void EndpointDriver::disarm() noexcept {
  if (!(x_attention & kArmed)) return;
  x_attention &= uint8_t(~kArmed);
  if (x_engine && owned()) x_transports.disarm();
}

int EndpointDriver::wait_fds(int* fds, int room) const noexcept {
  return x_transports.wait_fds(fds, room);
}

bool EndpointDriver::show_core(const transport::CoreUse& use, bool ask) noexcept {
  return owned() && x_transports.show_core(use, ask);
}

// --- calls by other objects of the domain -------------------------------------------------------

/// Runs tell(engine). Works are not run here, because the calling object may be in the middle of a
/// change.
template <typename Tell>
void EndpointDriver::tell(Tell&& tell) noexcept {
  if (!x_engine || !owned()) return;
  tell(*x_engine);
  attend(false);
}

void EndpointDriver::abandon(const protocol::Region& region, bool by_force) noexcept {
  tell([&](protocol::Engine& engine) { engine.abandon(region, by_force); });
}

void EndpointDriver::revoke(uint64_t key) noexcept {
  tell([&](protocol::Engine& engine) { engine.grants().revoke(key); });
}

void EndpointDriver::stop_waiting(uint64_t key, protocol::Await await) noexcept {
  tell([&](protocol::Engine& engine) { engine.grants().stop_waiting(key, await); });
}

void EndpointDriver::on_av_insert(uint64_t, const util::SocketAddress& canonical) noexcept {
  tell([&](protocol::Engine& engine) { engine.peers().address_inserted(canonical); });
}

void EndpointDriver::on_av_remove(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept {
  tell([&](protocol::Engine& engine) { engine.peers().address_removed(fi_addr, canonical); });
}

}  // namespace erdma::fabric
