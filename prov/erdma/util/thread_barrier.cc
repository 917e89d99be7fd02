#include "util/thread_barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace erdma::util {
namespace {

long membarrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0);
}

}  // namespace

bool ThreadBarrier::available() noexcept {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

bool ThreadBarrier::everywhere() noexcept {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return true;
  constexpr timespec kPause{0, 1'000'000};
  (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &kPause, nullptr);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return false;
}

}  // namespace erdma::util
