// Clock, median, cores and the plan of a measurement.
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "bench.h"

namespace erdma::bench {

double now_us() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) * 1e6 + double(time.tv_nsec) / 1e3;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void print(const std::string& key, double value) {
  std::printf("%s %.6g\n", key.c_str(), value);
  std::fflush(stdout);
}

namespace {

int core(int which) {
  int cores[2] = {0, 1};
  if (const char* text = std::getenv("BENCH_CORES")) std::sscanf(text, "%d %d", cores, cores + 1);
  return cores[which];
}

}  // namespace

void pin(int which) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(size_t(core(which)), &set);
  clients::must(::sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

void pin_beside_first() {
  cpu_set_t set;
  clients::must(::sched_getaffinity(0, sizeof set, &set), "sched_getaffinity");
  CPU_CLR(size_t(core(0)), &set);
  clients::must(::sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

Plan Plan::from_environment() {
  const char* sizes = std::getenv("BENCH_SIZES");
  const char* budget = std::getenv("BENCH_BUDGET_MS");
  Plan plan{{}, 1e3 * (budget ? std::atof(budget) : 20)};
  std::istringstream words(sizes ? sizes : "8 4096 65536 1048576 4194304");
  for (size_t size = 0; words >> size;) plan.sizes.push_back(size);
  return plan;
}

int Plan::fitting(double share, double us_each, int least, int most) const noexcept {
  return std::clamp(int(budget_us * share / us_each), least, most);
}

}  // namespace erdma::bench
