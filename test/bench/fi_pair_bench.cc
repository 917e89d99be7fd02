// fi_pair_bench pair|nic|emulated|one-sided|matching|memory: what FI_PROVIDER costs between
// processes of one host. The two of all but "memory" are pinned to cores 0 and 1, or to those of
// BENCH_CORES="2 3".
#include <sched.h>

#include <algorithm>
#include <cstring>

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

void print(const char* key, double value) {
  std::printf("%s %.5f\n", key, value);
  std::fflush(stdout);
}

int read_completions(Side& side, fi_cq_tagged_entry (&entries)[16]) {
  const ssize_t count = fi_cq_read(side.node.cq(), entries, 16);
  if (count == -FI_EAGAIN) return 0;
  if (count < 0) clients::fail("fi_cq_read: %s", fi_strerror(int(-count)));
  return int(count);
}

void inject(Side& side, uint64_t tag) {
  ssize_t rc;
  while ((rc = fi_tinject(side.node.ep(), &tag, 8, side.other, tag)) == -FI_EAGAIN) {
    fi_cq_read(side.node.cq(), nullptr, 0);
  }
  clients::must(int(rc), "fi_tinject");
}

namespace {

void pin(int which) {
  int cores[2] = {0, 1};
  if (const char* text = std::getenv("BENCH_CORES")) std::sscanf(text, "%d %d", cores, cores + 1);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(size_t(cores[which]), &set);
  clients::must(::sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

int run_side(Board& board, int who, void (*measure)(Side&)) {
  pin(who);
  clients::NodeOptions options;
  if (measure == measure_one_sided) {
    options.caps |= FI_RMA | FI_ATOMIC;
    options.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  }
  Node node(options);
  const std::vector<fi_addr_t> addresses = board.meet(node, who, 2);
  Side side{node, board, who == 0, addresses[size_t(1 - who)], addresses[size_t(who)]};
  measure(side);
  // Neither leaves while the other still needs its progress.
  board.words[0].fetch_add(1);
  node.wait_until([&] { return board.words[0].load() == 2; }, "the other process to finish");
  return 0;
}

int run_two(void (*measure)(Side&)) {
  Board& board = Board::create();
  std::vector<pid_t> children;
  for (int who : {0, 1}) {
    children.push_back(
        clients::spawn([&board, who, measure] { return run_side(board, who, measure); }));
  }
  return clients::reap(children, 50);
}

}  // namespace
}  // namespace erdma::bench

int main(int argc, char** argv) {
  using namespace erdma::bench;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "pair") return run_two(measure_pair);
  if (what == "nic") return run_two(measure_nic);
  if (what == "emulated") return run_two(measure_emulated);
  if (what == "one-sided") return run_two(measure_one_sided);
  if (what == "matching") return run_two(measure_matching);
  if (what == "memory") return measure_memory(32, 8);
  if (what == "memory-peer" && argc > 2) return measure_memory_peer(std::atoi(argv[2]));
  std::fprintf(stderr, "usage: fi_pair_bench pair|nic|emulated|one-sided|matching|memory\n");
  return 2;
}
