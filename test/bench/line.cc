// The time to move a cache line from one core to another.
#include "bench.h"

namespace erdma::bench {

double pass_line(std::atomic<uint64_t>& ball, bool first, int blocks, int turns, uint64_t passed) {
  std::vector<double> samples;
  uint64_t next = passed + (first ? 1 : 2);
  for (int block = 0; block < blocks; ++block) {
    const double start = now_us();
    for (int i = 0; i < turns; ++i, next += 2) {
      while (ball.load(std::memory_order_acquire) != next - 1) continue;
      ball.store(next, std::memory_order_release);
    }
    samples.push_back((now_us() - start) / turns / 2);
  }
  return median(samples);
}

void print_line(Board& board, bool first, bool at_end) {
  constexpr int kBlocks = 10, kTurns = 500;
  const uint64_t passed = at_end ? uint64_t{2} * kBlocks * kTurns : 0;
  const double us = pass_line(board.words[Board::kOwnLine], first, kBlocks, kTurns, passed);
  if (first) print(at_end ? "line_end" : "line_begin", us);
}

}  // namespace erdma::bench
