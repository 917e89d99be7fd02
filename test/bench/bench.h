#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <vector>

#include "../clients/fi_common.h"

/// Helpers for the programs of this folder. Results are lines "key value" on stdout.
namespace erdma::bench {

using clients::Board;
using clients::Node;

double now_us() noexcept;
double median(std::vector<double> samples);
void print(const std::string& key, double value);
/// Pins this process to one of the two cores of BENCH_CORES="A B", by default 0 and 1.
void pin(int which);
/// Pins this process to any core but the first of BENCH_CORES.
void pin_beside_first();

/// The measured sizes and durations: BENCH_SIZES="8 4096 ..." and BENCH_BUDGET_MS for each figure,
/// at the speed of a fast peer. All processes and all peers compute the same counts, so they need
/// no clock.
struct Plan {
  std::vector<size_t> sizes;
  double budget_us;

  static Plan from_environment();
  /// Returns how many operations fit into `share` of the budget, at least `least` and at most
  /// `most`.
  int fitting(double share, double us_each, int least, int most) const noexcept;
};

/// One of two pinned processes, or of several senders and a receiver, which is the first. Only the
/// process's only thread may use it.
struct Side {
  Node& node;
  Board& board;
  bool first;
  fi_addr_t other;  ///< the peer; at the receiver, the last sender
  fi_addr_t own;
};

/// Reads at most 16 completions. An error ends the process.
int read_completions(Side& side, fi_cq_tagged_entry (&entries)[16]);
/// Sends 8 bytes and needs no completion.
void inject(Side& side, uint64_t tag);

/// Exchanges messages slowly, so that a provider's own thread with the same core and priority has
/// the time to set up its resources for busy peers.
void settle(Side& side);
/// Measures half round trips and streams in one and two directions, with every size of the plan.
void measure_curves(Side& side);
/// Measures bursts, mixed sizes, unexpected messages, any source, and computing peers.
void measure_patterns(Side& side);
/// Measures several senders and one receiver.
void measure_senders(Side& side, int senders);
/// Measures the same figures as raw_verbs.
void measure_nic(Side& side);
/// Measures some of these figures where a message takes a hundred times as long.
void measure_emulated(Side& side);
void measure_matching(Side& side);

/// Measures RMA and atomics. The first process is the initiator.
void measure_one_sided(Side& side);

/// Measures memory. The observer starts `peers` processes of this program, which run
/// measure_memory_peer().
int measure_memory(int peers, int busy);
int measure_memory_peer(int socket);
/// Measures the limits of the machine: a cache line between the two cores, copies, and CMA.
int measure_machine();
int measure_line();  ///< only the cache line
/// Returns the microseconds for one direction. One process passes odd numbers, the other even ones,
/// from those on that follow `passed`.
double pass_line(std::atomic<uint64_t>& ball, bool first, int blocks, int turns,
                 uint64_t passed = 0);
/// Both of two pinned processes call this before and after they measure. Prints the microseconds
/// that a cache line takes between their cores, which a host may change at any time by moving a
/// virtual processor. No progress takes place meanwhile.
void print_line(Board& board, bool first, bool at_end);

}  // namespace erdma::bench
