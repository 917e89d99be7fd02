// The physical limits of a pair of cores: the time to move a cache line from one to the other, and
// the rate at which one copies the other's memory, through shared memory and through CMA.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "bench.h"

namespace erdma::bench {
namespace {

constexpr size_t kMost = size_t{32} << 20;

struct Shared {
  alignas(128) std::atomic<uint64_t> ball{0};
  alignas(128) std::atomic<uint32_t> ready{0};
  std::atomic<char*> owned{nullptr};
  std::atomic<bool> over{false};
  alignas(4096) char data[kMost];
};

Shared& share() {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return *new (memory) Shared;
}

/// Returns GB/s of `copy(offset)`, which copies `length` bytes of the other process.
template <class Copy>
double speed(const Plan& plan, size_t length, Copy copy) {
  const int each = plan.fitting(0.2, double(length) / 1e4, 8, 1000);
  const size_t window = std::min<size_t>(8, kMost / length);
  std::vector<double> samples;
  for (int block = 0; block < 5; ++block) {
    const double start = now_us();
    for (int i = 0; i < each; ++i) copy(size_t(i) % window * length);
    samples.push_back(double(length) * each / (now_us() - start) / 1e3);
  }
  return median(samples);
}

/// Fills the memory that the first process copies, so that this core's caches have as much of it as
/// possible.
int own_memory(Shared& shared) {
  pin(1);
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // otherwise, Yama lets only parents read
  std::vector<char> owned(kMost, char(1));
  std::memset(shared.data, 1, kMost);
  shared.owned = owned.data();
  shared.ready = 1;
  pass_line(shared.ball, false, 100, 1000);
  while (!shared.over) ::usleep(1000);
  return 0;
}

int copy_from(Shared& shared, const Plan& plan, pid_t other) {
  pin(0);
  std::vector<char> into(kMost);
  while (!shared.ready) continue;
  print("line", pass_line(shared.ball, true, 100, 1000));
  for (const size_t length : {size_t{65536}, size_t{1} << 20, size_t{4} << 20}) {
    const std::string size = std::to_string(length);
    print("copy_" + size, speed(plan, length, [&](size_t at) {
            std::memcpy(into.data() + at, shared.data + at, length);
          }));
    char* const owned = shared.owned;
    bool refused = false;
    const double cma = speed(plan, length, [&](size_t at) {
      const iovec here{into.data() + at, length}, there{owned + at, length};
      refused |= ::process_vm_readv(other, &here, 1, &there, 1, 0) != ssize_t(length);
    });
    if (!refused) print("cma_" + size, cma);
  }
  shared.over = true;
  return 0;
}

}  // namespace

int measure_line() {
  Shared& shared = share();
  const auto pass = [&](int who) {
    pin(who);
    const double us = pass_line(shared.ball, who == 0, 20, 1000);
    if (who == 0) print("line", us);
    return 0;
  };
  const pid_t other = clients::spawn([&] { return pass(1); });
  return clients::reap({other, clients::spawn([&] { return pass(0); })}, 50);
}

int measure_machine() {
  const Plan plan = Plan::from_environment();
  Shared& shared = share();
  const pid_t other = clients::spawn([&] { return own_memory(shared); });
  const pid_t self = clients::spawn([&] { return copy_from(shared, plan, other); });
  return clients::reap({other, self}, 50);
}

}  // namespace erdma::bench
