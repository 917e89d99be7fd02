#pragma once

#include <atomic>
#include <cstdint>

namespace erdma::util {

extern std::atomic<uint32_t> g_process_epoch;

/// A number that changes with every fork: 0 in a process that was not forked after
/// register_fork_handler(). An object that remembers the epoch of its birth can tell, with one load
/// and no system call, that it is used in a child that does not own it.
inline uint32_t process_epoch() noexcept {
  return g_process_epoch.load(std::memory_order_relaxed);
}

/// It also keeps children from inheriting descriptors of this process (private_fds.h). Idempotent;
/// call it before the first object remembers an epoch.
void register_fork_handler() noexcept;

}  // namespace erdma::util
