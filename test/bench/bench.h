#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "../clients/fi_common.h"

/// What the programs of this folder share. Results are lines "key value" on stdout.
namespace erdma::bench {

using clients::Board;
using clients::Node;

double now_us() noexcept;
double median(std::vector<double> samples);
void print(const std::string& key, double value);
/// Pins this process to one of the two cores of BENCH_CORES="A B", else 0 and 1.
void pin(int which);
/// Pins this process to any core but the first of BENCH_CORES.
void pin_beside_first();

/// Which sizes are measured, and how long: BENCH_SIZES="8 4096 ...", BENCH_BUDGET_MS for each
/// figure at the speed of a fast peer. All processes and all peers count the same, so they need no
/// clock.
struct Plan {
  std::vector<size_t> sizes;
  double budget_us;

  static Plan from_environment();
  /// How many operations fit into `share` of the budget, at least `least` and at most `most`.
  int fitting(double share, double us_each, int least, int most) const noexcept;
};

/// One side of two pinned processes, or one process among several senders and a receiver, which is
/// the first. Caller: the process's only thread.
struct Side {
  Node& node;
  Board& board;
  bool first;
  fi_addr_t other;  ///< of the receiver: the last sender
  fi_addr_t own;
};

/// Completions that were read, at most 16; an error ends the process.
int read_completions(Side& side, fi_cq_tagged_entry (&entries)[16]);
/// Sends 8 bytes and needs no completion.
void inject(Side& side, uint64_t tag);

/// Exchanges messages at leisure: a provider's own thread, on the same core and of the same
/// priority, gets the time to set up what it gives to busy peers.
void settle(Side& side);
/// Half round trips and streams, one and two directions, of every size of the plan.
void measure_curves(Side& side);
/// Bursts, mixed sizes, unexpected messages, any source, computing peers.
void measure_patterns(Side& side);
/// Several senders, one receiver.
void measure_senders(Side& side, int senders);
/// What raw_verbs measures too.
void measure_nic(Side& side);
/// Some of it, where a message takes a hundred times as long.
void measure_emulated(Side& side);
void measure_matching(Side& side);

/// RMA and atomics; first is the initiator.
void measure_one_sided(Side& side);

/// Memory: the observer starts `peers` processes of this program, each running measure_memory_peer.
int measure_memory(int peers, int busy);
int measure_memory_peer(int socket);
/// What the machine allows: the time of a cache line between the two cores, copies, CMA.
int measure_machine();
int measure_line();  ///< only the cache line

}  // namespace erdma::bench
