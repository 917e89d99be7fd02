#include "transport/shm/fragment_timer.h"

#include <algorithm>
#include <cstring>

#include "transport/shm/short_reads.h"

namespace erdma::transport::shm {
namespace {

/// What the packets of a rendezvous add to the time in which the receiver reads, in ns. A short one
/// needs no ticket.
constexpr uint64_t time_of_packets(size_t length) noexcept {
  return length <= ShortReads::kLongest ? 200 : 500;
}

/// A receiver that polls has read a message of kLongestOnlyInTurns or less after this time, in ns,
/// and a sender that polls knows. If one of them does not poll, nobody need wait for packets.
constexpr uint64_t kSoon = 8'000;

/// For so long, in ns, a rendezvous keeps other messages from being timed. Its receive may be
/// missing.
constexpr uint64_t kLongWait = 10'000'000;

uint64_t time_at(uint32_t rate, size_t length) noexcept {
  return uint64_t(length) * 1000 / rate;
}

/// What a rendezvous costs its sender later. A receiver that reads the sender's memory more slowly
/// than the ring finds lines there that the sender has just written. As a rule the sender soon
/// writes them again, and must take each back from the receiver's core. Measured on two Intel
/// cores: collectives that reduce 128 KiB lose twice that difference.
uint64_t cost_of_rewriting(uint64_t reading, uint64_t taking) noexcept {
  return reading > taking ? 2 * (reading - taking) : 0;
}

}  // namespace

bool FragmentTimer::prefers_packets(const void* link, FragmentChoice::Kind kind,
                                    bool alone) noexcept {
  const FragmentChoice::Way way = x_choice.choose(kind);
  const bool busy = x_link && x_remote_key.size;  // a rendezvous with another peer, as a rule
  if (!way.timed && !busy) x_link = nullptr;
  if (!way.timed) return way.packets;
  const uint64_t now = x_clock.now();
  if (busy && now - x_began < kLongWait) return way.packets;
  x_link = link;
  x_alone = alone;
  x_packets = way.packets;
  x_kind = kind;
  x_written = 0;
  x_watched = false;
  x_remote_key.size = 0;
  x_began = now;
  return way.packets;
}

// The receiver copies a fragment while the next is written. So the slower of both copies counts,
// and one fragment of the other. Both count in full if the receiver has taken nothing meanwhile,
// as when it computes, or if messages go both ways, as each side does both copies then.
void FragmentTimer::written(size_t length, Receiver receiver) noexcept {
  x_written += length;
  if (!x_packets || x_kind.length - x_written > length) return;  // not the last but one
  const uint64_t writing = (x_clock.now() - x_began) * x_kind.length / x_written;
  const uint64_t taking = receiver.take_rate ? time_at(receiver.take_rate, x_kind.length) : writing;
  const uint64_t shorter = std::min(writing, taking);
  const bool idle = x_watched && receiver.consumed == x_consumed;
  const bool overlap = !receiver.sends_too && !idle;
  x_choice.record(
      x_kind, true,
      std::max(writing, taking) + (overlap ? shorter * length / x_kind.length : shorter));
  x_link = nullptr;
}

void FragmentTimer::shared(const void* link, size_t length, const RemoteKey& remote_key) noexcept {
  if (x_link != link || x_remote_key.size) return;
  if (times_read(link, length))
    x_remote_key = remote_key;
  else
    x_link = nullptr;
}

void FragmentTimer::revoked(const RemoteKey& remote_key, uint32_t reading,
                            uint32_t take_rate) noexcept {
  if (x_remote_key.size != remote_key.size ||
      std::memcmp(x_remote_key.bytes, remote_key.bytes, remote_key.size) != 0)
    return;
  x_link = nullptr;
  uint64_t took = x_alone ? x_clock.now() - x_began : UINT64_MAX;
  const bool waits =
      x_alone && x_kind.length <= FragmentChoice::kLongestOnlyInTurns && took > reading + kSoon;
  if (reading > 0 && !waits) {
    took = std::min(took, reading + time_of_packets(x_kind.length));
    if (take_rate) took += cost_of_rewriting(reading, time_at(take_rate, x_kind.length));
  }
  if (took != UINT64_MAX) x_choice.record(x_kind, false, took);
}

}  // namespace erdma::transport::shm
