#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "../clients/fi_common.h"

/// What the parts of fi_pair_bench share. Results are lines "key value" on stdout.
namespace erdma::bench {

using clients::Board;
using clients::Node;

/// One side of two pinned processes. Caller: the process's only thread.
struct Side {
  Node& node;
  Board& board;
  bool first;
  fi_addr_t other;
  fi_addr_t own;
};

double now_us() noexcept;
double median(std::vector<double> samples);
void print(const char* key, double value);
/// Completions that were read, at most 16; an error ends the process.
int read_completions(Side& side, fi_cq_tagged_entry (&entries)[16]);
/// Sends 8 bytes and needs no completion.
void inject(Side& side, uint64_t tag);

/// Exchanges messages at leisure: a provider's own thread, on the same core and of the same
/// priority, gets the time to set up what it gives to busy peers.
void settle(Side& side);
void measure_pair(Side& side);
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

}  // namespace erdma::bench
