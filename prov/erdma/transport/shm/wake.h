#pragma once

#include <atomic>

#include "transport/shm/layout.h"
#include "transport/shm/wake_socket.h"

/// Sleeping and waking without a fence on the fast path. See docs/threading.md, "Sleeping".
///
/// A receiver that never sleeps leaves may_sleep at 0, and its senders do one plain load. Before it
/// sleeps for the first time, it sets may_sleep and makes its peers' CPUs execute a barrier
/// (membarrier), so that each sender either sees the flag or has already published what it sent
/// before. From then on senders fence, until the receiver has polled for long without a sleep: then
/// it clears may_sleep, and the next sleep begins as the first one did.
namespace erdma::transport::shm {

/// What the kernel offers to this process.
struct Barriers {
  bool global = false;     ///< reaches every thread of every process; slow (milliseconds)
  bool expedited = false;  ///< fast; reaches the processes that registered, as this one did
};
Barriers register_barriers() noexcept;
/// A barrier on all peers' CPUs. False = not available.
bool barrier_on_all(const Barriers& barriers, bool peers_registered) noexcept;

bool wake_slow(WakeWords& words, const Waker& waker) noexcept;

/// A sender calls this after it has published something. False: as Waker::ring().
[[nodiscard]] inline bool wake_if_asleep(WakeWords& words, const Waker& waker) noexcept {
  if (words.may_sleep.load(std::memory_order_relaxed)) [[unlikely]]
    return wake_slow(words, waker);
  return true;
}

}  // namespace erdma::transport::shm
