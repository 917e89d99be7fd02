// Driving an endpoint, and sleeping until there is something to drive.
#include <algorithm>

#include "fabric/auto_progress.h"
#include "fabric/endpoint.h"

namespace erdma::fabric {

int Endpoint::progress() noexcept {
  if (!x_engine || !owned()) [[unlikely]]
    return 0;
  if (!x_attention) [[likely]]
    return x_engine->progress();
  if (x_attention & kArmed && !slept_on()) disarm();
  const int steps = x_engine->progress();
  worked();
  return steps;
}

void Endpoint::attend() noexcept {
  if (x_attention & kWorks) x_domain.works().run();
  if (x_attention & kArmed) keep_armed();
}

/// Whether some thread relies on the wake-up that arm() promised: it must survive the progress
/// that others make.
bool Endpoint::slept_on() const noexcept {
  if (x_domain.auto_progress()) return true;
  for (const CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq && cq->sleeping()) return true;
  return std::any_of(x_counters.begin(), x_counters.end(),
                     [](const Counter* cntr) { return cntr->sleeping(); });
}

bool Endpoint::arm() noexcept {
  if (!x_engine || !owned()) return true;
  x_attention |= kArmed;
  if (x_engine->spare_targets() == 0 && x_transports.arm()) return true;
  // The promise made to others who sleep is void.
  wake_sleepers();
  return false;
}

/// After something was done while others sleep: what it left undone is theirs to notice, and what
/// it asked a target for must not wait until that looks, as in arm().
void Endpoint::keep_armed() noexcept {
  if (!slept_on()) return disarm();
  if (x_engine->spare_targets() != 0 || !x_transports.arm()) wake_sleepers();
}

void Endpoint::wake_sleepers() noexcept {
  for (CompletionQueue* cq : {x_sent.cq, x_received.cq})
    if (cq && cq->sleeping()) cq->wake();
  for (Counter* cntr : x_counters)
    if (cntr->sleeping()) cntr->wake();
  if (AutoProgress* driver = x_domain.auto_progress()) driver->wake();
}

void Endpoint::disarm() noexcept {
  if (!(x_attention & kArmed)) return;
  x_attention &= uint8_t(~kArmed);
  if (x_engine && owned()) x_transports.disarm();
}

int Endpoint::wait_fds(int* fds, int room) const noexcept {
  return x_transports.wait_fds(fds, room);
}

}  // namespace erdma::fabric
