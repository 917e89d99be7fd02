// gpu_pair kind | check PROVIDER [MEMORY] | time PROVIDER BYTES ROUNDS [MEMORY] | copy BYTES ROUNDS
// Sends messages between GPU memory of two processes through libfabric, and measures copies by the
// driver alone. MEMORY is a kind that Driver::choose() knows. The second process uses the second
// GPU, if there is one.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "gpu_endpoint.h"

namespace {

using gpu::DevicePointer;
using gpu::Driver;
using gpu::Endpoint;
using gpu::memory_at;
using gpu::pattern;
using gpu::Pipes;

constexpr size_t kSizes[] = {0,     1,     8,      64,      65,      4096,     8192,     8193,
                             16384, 65536, 100000, 1000003, 1 << 21, 10 << 20, 33 << 20, 70 << 20};

bool g_failed = false;

/// Checks a size from and to both kinds of memory, in new memory each time, so that addresses and
/// IPC handles are used again with other bytes.
void check_size(Endpoint& ep, Driver& driver, bool sends, size_t length, int kinds) {
  const bool device = kinds & (sends ? 1 : 2);
  const auto message = pattern(length, kinds);
  std::vector<char> host = sends ? message : std::vector<char>(length, '-');
  const DevicePointer memory = device ? driver.allocate(length) : 0;
  if (device && length) driver.put(memory, host);
  void* const at = device ? memory_at(memory) : host.data();
  void* const desc = ep.descriptor(at, length, device);
  if (sends)
    ep.send(at, length, length, desc);
  else
    ep.receive(at, length, length, desc);
  ep.wait(1);
  if (!sends) {
    const auto seen = device && length ? driver.get(memory, length) : host;
    if (seen != message) {
      std::printf("FAIL: %zu bytes, case %d\n", length, kinds);
      g_failed = true;
    }
  }
  ep.forget();
  if (device) driver.free(memory);
}

int check(const char* provider, const std::string& memory) {
  Pipes pipes;
  Driver driver(pipes.second() ? 1 : 0);
  driver.choose(memory);
  Endpoint ep(provider);
  ep.meet(pipes.exchange(ep.name()));
  for (int round = 0; round < 2; ++round)
    for (const size_t length : kSizes)
      for (int kinds = 1; kinds < 4; ++kinds)
        check_size(ep, driver, pipes.second() == (round == 1), length, kinds);
  return pipes.finish(g_failed);
}

/// Prints half a round trip in us, as the median of rounds.
int time_messages(const char* provider, size_t length, int rounds, const std::string& memory) {
  Pipes pipes;
  Driver driver(pipes.second() ? 1 : 0);
  driver.choose(memory);
  Endpoint ep(provider);
  ep.meet(pipes.exchange(ep.name()));
  const DevicePointer out = driver.allocate(length), in = driver.allocate(length);
  void* const out_desc = ep.descriptor(memory_at(out), length, true);
  void* const in_desc = ep.descriptor(memory_at(in), length, true);
  std::vector<double> times;
  for (int i = -20; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ep.receive(memory_at(in), length, 1, in_desc);
    if (pipes.second()) {
      ep.wait(1);
      ep.send(memory_at(out), length, 1, out_desc);
      ep.wait(1);
      continue;
    }
    ep.send(memory_at(out), length, 1, out_desc);
    ep.wait(2);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= 0) times.push_back(took.count() / 2);
  }
  if (!pipes.second()) {
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    std::printf("%.2f\n", times[size_t(rounds) / 2]);
    std::fflush(stdout);
  }
  return pipes.finish(0);
}

/// Measures a cuMemcpyAsync() of the same bytes within one process, to the second GPU if any.
int time_copies(size_t length, int rounds) {
  Driver other(1), driver(0);
  const DevicePointer to = other.allocate(length), from = driver.allocate(length);
  std::vector<double> times;
  for (int i = -20; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    driver.copy(to, from, length);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= 0) times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  std::printf("%.2f\n", times[size_t(rounds) / 2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::strtoul(argv[i], nullptr, 0); };
  const auto memory = [&](int i) { return std::string(argc > i ? argv[i] : "plain"); };
  if (what == "kind") return std::puts(Driver(0).describe().c_str()) < 0;
  if (what == "check" && argc >= 3) return check(argv[2], memory(3));
  if (what == "time" && argc >= 5)
    return time_messages(argv[2], number(3), int(number(4)), memory(5));
  if (what == "copy" && argc == 4) return time_copies(number(2), int(number(3)));
  std::fputs(
      "gpu_pair kind | check PROVIDER [MEMORY] | time PROVIDER BYTES ROUNDS [MEMORY] | copy BYTES "
      "ROUNDS\n",
      stderr);
  return 64;
}
