#include "transport/shm/fragment_limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "transport/shm/cma.h"

namespace erdma::transport::shm {

FragmentLimits::Limits FragmentLimits::where_shared(bool cma) noexcept {
  const bool copies = !cma || call_per_copies() > kClearly;
  const Limits& most = copies ? kCopiesPay : kCallsPay;
  return {chosen() ? std::min(x_options.eager_bytes, most.message) : most.message, most.all_rings,
          most.of_burst};
}

/// How long the call takes compared with two copies; 0 if the user wants it in any case.
float FragmentLimits::call_per_copies() noexcept {
  if (!x_call_per_copies) x_call_per_copies = measure();
  return *x_call_per_copies;
}

/// Reads this process's own memory by the call, and copies it twice. A sandbox that does not permit
/// the call does not permit the peers', either.
float FragmentLimits::measure() noexcept {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  if (x_options.paths == PathPolicy::cma) return 0;
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[3 * kMeasured]());
  if (!memory) return kNever;
  std::byte *const from = memory.get(), *const ring = from + kMeasured,
                   *const to = ring + kMeasured;
  uint64_t call = UINT64_MAX, copies = UINT64_MAX;
  for (unsigned i = 0; i < kTries; ++i) {
    const iovec local{to, kMeasured}, remote{from, kMeasured};
    const uint64_t begin = x_clock.now();
    if (x_calls.readv(::getpid(), &local, 1, &remote, 1) != ssize_t(kMeasured)) return kNever;
    const uint64_t between = x_clock.now();
    std::memcpy(ring, from, kMeasured);
    asm volatile("" : : "r"(ring) : "memory");  // keeps the compiler from leaving the copies out
    std::memcpy(to, ring, kMeasured);
    asm volatile("" : : "r"(to) : "memory");
    copies = std::min(copies, x_clock.now() - between);
    call = std::min(call, between - begin);
  }
  return float(call) / float(std::max<uint64_t>(copies, 1));
}

}  // namespace erdma::transport::shm
