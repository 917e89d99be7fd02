#include "util/thread_barrier.h"

#include <cerrno>
#include <ctime>

#include "util/membarrier.h"

namespace erdma::util {
namespace {

/// Returns after a millisecond at the earliest, also if signals arrive.
void sleep_millisecond() noexcept {
  timespec left{0, 1'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

}  // namespace

bool ThreadBarrier::available() noexcept {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

bool ThreadBarrier::everywhere() noexcept {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return true;
  sleep_millisecond();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return false;
}

}  // namespace erdma::util
