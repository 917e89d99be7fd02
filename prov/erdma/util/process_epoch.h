#pragma once

#include <atomic>
#include <cstdint>

namespace erdma::util {

extern std::atomic<uint32_t> g_process_epoch;

/// A number that differs in every forked child from its parent's: 0 in a process that was never
/// forked after register_fork_handler(). An object that remembers its birth epoch knows, with one
/// load and no system call, that it is being used in a child that does not own it.
inline uint32_t process_epoch() noexcept {
  return g_process_epoch.load(std::memory_order_relaxed);
}

/// Also takes the descriptors of this process from its children (private_fds.h).
/// Idempotent; call before the first object remembers an epoch.
void register_fork_handler() noexcept;

}  // namespace erdma::util
