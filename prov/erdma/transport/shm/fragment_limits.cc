#include "transport/shm/fragment_limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "transport/shm/cma.h"

namespace erdma::transport::shm {

FragmentLimits::Limits FragmentLimits::where_shared(bool cma) noexcept {
  if (cma && !x_copies_pay) x_copies_pay = copies_pay();
  const Limits& most = !cma || *x_copies_pay ? kCopiesPay : kCallsPay;
  return {chosen() ? std::min(x_options.eager_bytes, most.message) : most.message, most.all_rings,
          most.of_burst};
}

/// Reads this process's own memory by the call, and copies it twice. A sandbox that does not permit
/// the call does not permit the peers', either.
bool FragmentLimits::copies_pay() noexcept {
  if (x_options.paths == PathPolicy::cma) return false;
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[3 * kMeasured]());
  if (!memory) return false;
  std::byte *const from = memory.get(), *const ring = from + kMeasured,
                   *const to = ring + kMeasured;
  uint64_t call = UINT64_MAX, copies = UINT64_MAX;
  for (unsigned i = 0; i < kTries; ++i) {
    const iovec local{to, kMeasured}, remote{from, kMeasured};
    const uint64_t begin = x_clock.now();
    if (x_calls.readv(::getpid(), &local, 1, &remote, 1) != ssize_t(kMeasured)) return true;
    const uint64_t between = x_clock.now();
    std::memcpy(ring, from, kMeasured);
    asm volatile("" : : "r"(ring) : "memory");  // keeps the compiler from leaving the copies out
    std::memcpy(to, ring, kMeasured);
    asm volatile("" : : "r"(to) : "memory");
    copies = std::min(copies, x_clock.now() - between);
    call = std::min(call, between - begin);
  }
  return call > kClearly * copies;
}

}  // namespace erdma::transport::shm
