#pragma once

#include <atomic>
#include <cstdint>

namespace erdma::util {

extern std::atomic<uint32_t> g_process_epoch;

/// The number of forks between the process that called register_fork_handler() and this one: 0 in
/// that process, 1 in its children. An object that stores the epoch of its construction can tell,
/// with one load and no system call, that it is used in a child that does not own it.
inline uint32_t process_epoch() noexcept {
  return g_process_epoch.load(std::memory_order_relaxed);
}

/// Makes process_epoch() change in children, and keeps children from inheriting marked descriptors
/// (private_fds.h). Idempotent. Call it before the first object stores an epoch.
void register_fork_handler() noexcept;

}  // namespace erdma::util
