// fi_pair_bench curves|patterns|senders N|nic|emulated|one-sided|matching|memory|offered measures
// the provider of FI_PROVIDER between processes of one host; machine|line measure the limits of the
// host. Except for "memory", the two processes are pinned to cores 0 and 1, or to those of
// BENCH_CORES="2 3". Plan describes sizes and counts.
#include "bench.h"

namespace erdma::bench {

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

constexpr double kLimit = 600;  // s; scripts have shorter ones

using Measure = void (*)(Side&);

clients::NodeOptions options_for(Measure measure) {
  clients::NodeOptions options;
  if (measure == measure_one_sided) {
    options.caps |= FI_RMA | FI_ATOMIC;
    options.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  }
  if (measure == measure_patterns) options.caps |= FI_DIRECTED_RECV;
  return options;
}

/// Waits until all processes are done, as another one may still need this one's progress.
void leave(Node& node, Board& board, uint64_t processes) {
  board.words[0].fetch_add(1);
  node.wait_until([&] { return board.words[0].load() == processes; }, "the other processes to end");
}

int run_side(Board& board, int who, Measure measure) {
  pin(who);
  Node node(options_for(measure));
  const std::vector<fi_addr_t> addresses = board.meet(node, who, 2);
  Side side{node, board, who == 0, addresses[size_t(1 - who)], addresses[size_t(who)]};
  const bool two_cores = measure != measure_emulated;  // the virtual machine may have one
  if (two_cores) print_line(board, who == 0, false);
  measure(side);
  leave(node, board, 2);
  if (two_cores) print_line(board, who == 0, true);
  return 0;
}

int run_two(Measure measure) {
  Board& board = Board::create();
  std::vector<pid_t> children;
  for (int who : {0, 1}) {
    children.push_back(
        clients::spawn([&board, who, measure] { return run_side(board, who, measure); }));
  }
  return clients::reap(children, kLimit);
}

int run_sender(Board& board, int who, int senders) {
  who == 0 ? pin(0) : pin_beside_first();
  Node node;
  const std::vector<fi_addr_t> addresses = board.meet(node, who, senders + 1);
  Side side{node, board, who == 0, addresses[size_t(who == 0 ? senders : 0)],
            addresses[size_t(who)]};
  measure_senders(side, senders);
  leave(node, board, uint64_t(senders) + 1);
  return 0;
}

/// Exits with 77 if the provider does not exist.
int offered() {
  const Node node;
  std::puts(node.info().fabric_attr->prov_name);
  return 0;
}

/// Runs several senders. The first process receives.
int run_senders(int senders) {
  if (senders < 1 || senders >= Board::kProcesses) clients::fail("senders: 1 to 39");
  Board& board = Board::create();
  std::vector<pid_t> children;
  for (int who = 0; who <= senders; ++who)
    children.push_back(
        clients::spawn([&board, who, senders] { return run_sender(board, who, senders); }));
  return clients::reap(children, kLimit);
}

}  // namespace
}  // namespace erdma::bench

int main(int argc, char** argv) {
  using namespace erdma::bench;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "curves") return run_two(measure_curves);
  if (what == "patterns") return run_two(measure_patterns);
  if (what == "senders" && argc > 2) return run_senders(std::atoi(argv[2]));
  if (what == "nic") return run_two(measure_nic);
  if (what == "emulated") return run_two(measure_emulated);
  if (what == "one-sided") return run_two(measure_one_sided);
  if (what == "matching") return run_two(measure_matching);
  if (what == "memory") return measure_memory(32, 8);
  if (what == "memory-peer" && argc > 2) return measure_memory_peer(std::atoi(argv[2]));
  if (what == "machine") return measure_machine();
  if (what == "offered") return offered();
  if (what == "line") return measure_line();
  std::fprintf(
      stderr,
      "usage: fi_pair_bench "
      "curves|patterns|senders N|nic|emulated|one-sided|matching|memory|machine|line|offered\n");
  return 2;
}
