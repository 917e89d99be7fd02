#include "transport/shm/wake.h"

#include "transport/shm/ordering.h"
#include "util/membarrier.h"

namespace erdma::transport::shm {

using util::membarrier;

Barriers register_barriers() noexcept {
  const long offered = membarrier(MEMBARRIER_CMD_QUERY);
  if (offered <= 0) return {};
  Barriers result;
  result.global = offered & MEMBARRIER_CMD_GLOBAL;
  result.expedited = (offered & MEMBARRIER_CMD_GLOBAL_EXPEDITED) &&
                     !membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
  return result;
}

bool barrier_on_all(const Barriers& barriers, bool peers_registered) noexcept {
  if (peers_registered && barriers.expedited && !membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED))
    return true;
  return barriers.global && !membarrier(MEMBARRIER_CMD_GLOBAL);
}

bool wake_slow(WakeWords& words, const Waker& waker) noexcept {
  return wake_sleeper(words.armed, [&] { return waker.ring(); });
}

}  // namespace erdma::transport::shm
