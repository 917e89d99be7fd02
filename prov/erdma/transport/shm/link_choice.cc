#include "transport/shm/link_choice.h"

#include "transport/shm/link.h"
#include "transport/shm/link_context.h"

namespace erdma::transport::shm {
namespace {

/// True if the peer may read this process by CMA. What this process may do to the peer tells that,
/// as a rule.
bool may_call(const CmaPeer& peer) noexcept {
  return peer.read.permission == Permission::allowed;
}

/// True if either side may move what the other shares.
bool calls_help(const CmaPeer& peer) noexcept {
  return may_call(peer) || peer.write.permission == Permission::allowed;
}

// A receiver that has taken nothing for a while gets a rendezvous: only its header needs room in
// the ring, and the receiver can complete it by itself. So do messages to so many peers that they
// leave the cache before the receivers run, and unexpected ones, but where processes share a core:
// there a rendezvous that copies takes turns on it.
bool suits_fragments(ShmLink& link, size_t length, bool expected) noexcept {
  LinkContext& context = link.context();
  const bool shared_core = context.core.shared();
  const CmaPeer& peer = link.direct().peer();
  const size_t measured = may_measure(context, peer) ? length : 0;
  const auto most = context.fragment_limits.limits(shared_core, calls_help(peer), measured);
  const bool in_burst = context.bursts.add(&link, context.polls);
  return length <= most.message && (!in_burst || length <= most.of_burst) &&
         (expected || shared_core) &&
         context.large_messages.links_with(&link) * length <= most.all_rings;
}

/// About how many entries of the ring a message takes in packets.
uint32_t entries_of(size_t length) noexcept {
  return uint32_t(length / FragmentChoice::kShortest);
}

/// About how many bytes of the byte ring it takes at most; see after_payload().
uint32_t bytes_of(size_t length) noexcept {
  return uint32_t(length) + (entries_of(length) + 1) * (kPayloadGap + 2 * uint32_t(kLine));
}

/// Messages of streams both ways go in packets up to this length.
constexpr size_t kLongestInPacketsBothWays = size_t{16} * 1024;

BulkOut::Shared shared_by(ShmLink& link) noexcept {
  return link.out().bulk() ? link.out().bulk()->shared() : BulkOut::Shared::nothing;
}

/// True for a message of a stream both ways that is faster by a rendezvous. By packets, each core
/// would have both copies to do, and the lines of both rings would go to and fro. That is known
/// from comparisons and not learned: a few rendezvous amid packets take up to three times as long
/// as among their kind. A long rendezvous under way would keep it waiting.
bool is_read_both_ways(ShmLink& link, size_t length) noexcept {
  return length > kLongestInPacketsBothWays && link.turns().both_ways() &&
         shared_by(link) != BulkOut::Shared::some_long &&
         may_measure(link.context(), link.direct().peer()) &&
         link.context().fragment_limits.calls_are_fast();
}

/// For a message of medium length: asks for the faster way, and lets this message be timed.
bool faster_in_packets(ShmLink& link, RingSender& ring, size_t length) noexcept {
  using Shared = BulkOut::Shared;
  LinkContext& context = link.context();
  FragmentTimer& timer = context.fragments;
  const Shared shared = shared_by(link);
  if (shared == Shared::some_long && length <= kDefaultEager) return true;
  const uint32_t taken = link.in() ? link.in()->ring().taken() : 0;
  const bool answered = link.turns().answered(taken, ring.pushed(), entries_of(length));
  const bool alone = shared == Shared::nothing, in_turns = answered && alone;
  // Sides in turns are no stream. What the ring holds is asked last: the receiver writes that line.
  if (!in_turns && is_read_both_ways(link, length) &&
      (!alone || ring.holds_over(entries_of(length), bytes_of(length))))
    return false;
  if (!in_turns && length <= FragmentChoice::kLongestOnlyInTurns) return true;
  if (in_turns && length > FragmentChoice::kLongestOnlyInTurns && !timer.knows_calls())
    timer.begin(context.fragment_limits.calls_are_fast());
  const bool packets = timer.prefers_packets(&link, {length, in_turns}, alone);
  if (!packets || !timer.times(&link)) return packets;
  if (ring.reaches_new_pages(bytes_of(length)))
    timer.begins(&link);  // anew: that is not what packets take in the long run
  else if (ring.drained())
    timer.watch(ring.consumed());
  return true;
}

}  // namespace

bool may_measure(const LinkContext& context, const CmaPeer& peer) noexcept {
  return context.options.paths == PathPolicy::measure && !context.core.shared() && may_call(peer);
}

bool prefers_packets(ShmLink& link, size_t length, bool expected) noexcept {
  LinkContext& context = link.context();
  FragmentTimer& timer = context.fragments;
  timer.begins(&link);
  RingSender* const ring = link.out().hot_ring();
  if (!ring) return false;
  const bool goes_whole = length <= link.limits().eager;
  if (!goes_whole && !suits_fragments(link, length, expected)) return false;
  if (!ring->room_for(1) || !ring->room_for_bytes(bytes_of(length)))
    return goes_whole || (ring->moves() && !is_read_both_ways(link, length));
  if (!goes_whole) {
    context.count_message();
    context.large_messages.add(&link);
  }
  if (length <= FragmentChoice::kShortest || !ring->warm() ||
      !may_measure(context, link.direct().peer()))
    return true;
  return faster_in_packets(link, *ring, length);
}

}  // namespace erdma::transport::shm
