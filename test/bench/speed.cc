// Latency, bandwidth and message rate between processes, over the provider of FI_PROVIDER.
#include <unistd.h>

#include "fabric_link.h"
#include "patterns.h"

namespace erdma::bench {
namespace {

/// Prints the GB/s of a stream of long messages, with few in flight.
void bandwidth(FabricLink& link, size_t length, int messages) {
  Stream<FabricLink> stream(link, length, 8);
  const double rate = message_rate(link, stream, messages, 1);
  if (link.first()) print("bandwidth_" + std::to_string(length), rate * double(length) / 1e3);
}

}  // namespace

void settle(Side& side) {
  FabricLink link(side);
  PingPong<FabricLink> game(link, 8);
  for (int i = 0; i < 200; ++i) {
    game.turns(1);
    ::usleep(500);
  }
}

void measure_nic(Side& side) {
  settle(side);
  FabricLink link(side);
  half_round_trip(link, 8, 2000, 20);
  for (size_t length = 1024; length <= size_t{64} << 10; length *= 4)
    half_round_trip(link, length, 500, 2);
  Stream<FabricLink> stream(link, 8, kWindow);
  const double rate = message_rate(link, stream, 96000, 1);
  if (side.first) print("rate", rate);
  bandwidth(link, size_t{1} << 20, 128);
}

void measure_emulated(Side& side) {
  settle(side);
  FabricLink link(side);
  half_round_trip(link, 8, 100, 10);  // reading the clock takes as long as a turn
  bandwidth(link, size_t{1} << 20, 40);
}

void measure_curves(Side& side) {
  settle(side);
  FabricLink link(side);
  measure_all_sizes(link);
}

void measure_patterns(Side& side) {
  settle(side);
  FabricLink link(side);
  measure_all_patterns(link);
}

void measure_senders(Side& side, int senders) {
  FabricLink link(side, !side.first);
  measure_all_senders(link, side.board, senders);
}

}  // namespace erdma::bench
