#include "transport/shm/ring.h"

#include <algorithm>
#include <utility>

#include "transport/shm/stream_copy.h"
#include "util/clock.h"

namespace erdma::transport::shm {

void reset_ring(const RingMemory& memory, uint32_t start) noexcept {
  const uint32_t count = memory.count();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t sequence = start + i;
    memory.slots[slot_of(sequence, count - 1)].stamp.store(uint32_t(sequence + 1 - count),
                                                           std::memory_order_relaxed);
  }
  memory.waiting->store(0, std::memory_order_relaxed);
  store_release(*memory.consumed, start);
}

bool SlotSender::refresh() noexcept {
  const uint64_t seen = load_acquire(*x_memory.consumed);
  // An unchanged word is no news: put_bytes() may have advanced x_byte_tail since.
  if (seen != x_seen && x_memory.bytes)
    static_cast<RingSender*>(this)->taken_up_to(uint32_t(seen >> 32));
  x_seen = seen;
  // A receiver that claims to have consumed entries that were never sent harms only itself, but
  // room_for() needs a distance within the ring.
  const uint32_t in_flight = x_head - uint32_t(x_seen), count = x_mask + 1;
  x_limit = in_flight > count ? x_head : x_head + (count - in_flight);
  return x_head != x_limit;
}

namespace {

/// Requests many lines at a time. A copy alone does not do that where this core already has them
/// for reading.
void own_lines(const std::byte* memory, uint32_t length) noexcept {
  for (uint32_t i = 0; i < length; i += kLine) own_line(memory + i);
}
/// Lines are requested so far ahead of the copy: enough at a time, but processors with few miss
/// buffers (Zen 1) wait if all of a long payload are. The lines are written in ascending order,
/// which memcpy() does not do; then a prefetcher helps.
constexpr uint32_t kOwnedAhead = 8 * uint32_t(kLine);
void copy_to_owned(std::byte* to, const void* payload, uint32_t length) noexcept {
  const auto* from = static_cast<const std::byte*>(payload);
  own_lines(to, std::min(length, kOwnedAhead));
  for (; length >= kLine; to += kLine, from += kLine, length -= uint32_t(kLine)) {
    if (length > kOwnedAhead) own_line(to + kOwnedAhead);
    std::memcpy(to, from, kLine);
  }
  if (length > 0) std::memcpy(to, from, length);
}
void copy_by(hmem::CopyMethod method, std::byte* to, const void* from, uint32_t length) noexcept {
  switch (method) {
    case hmem::CopyMethod::loop:
      return copy_to_owned(to, from, length);
    case hmem::CopyMethod::library:
      std::memcpy(to, from, length);
      return;
    case hmem::CopyMethod::string:
      return hmem::copy_string(to, from, length);
    case hmem::CopyMethod::stream:
      return stream_copy(to, from, length);
  }
}

/// The stamp that follows becomes visible after these stores, so the time of a copy includes their
/// way from the store buffer, which holds a few KiB: without it short copies seem to take no time.
void wait_for_stores() noexcept {
#if defined(__x86_64__)
  asm volatile("mfence" : : : "memory");
#elif defined(__aarch64__)
  asm volatile("dsb ish" : : : "memory");
#endif
}

Kind kind_of(uint64_t stamp) noexcept {
  return Kind(stamp >> 56 & 0x7f);
}
uint64_t with_kind(uint64_t stamp, Kind kind) noexcept {
  return (stamp & ~(uint64_t(0x7f) << 56)) | uint64_t(kind) << 56;
}
/// The first side to change the kind decides what the other may do.
bool change_kind(std::atomic<uint64_t>& stamp, uint32_t sequence, Kind to) noexcept {
  uint64_t seen = load_acquire(stamp);
  return uint32_t(seen) == sequence && kind_of(seen) == Kind::retractable &&
         compare_exchange_acq_rel(stamp, seen, with_kind(seen, to));
}

}  // namespace

bool SlotSender::push_retractable(const void* header, const iovec* payload, size_t count,
                                  size_t length, uint32_t& sequence) noexcept {
  if (!room_for((x_mask + 1) / 2)) return false;
  if (length > kSlotPayload && !static_cast<RingSender*>(this)->half_is_free()) return false;
  if (!push(Kind::retractable, header, payload, count, length)) return false;
  sequence = x_head;
  return true;
}

bool SlotSender::retract(uint32_t sequence) noexcept {
  return change_kind(x_memory.slots[slot_of(sequence - 1, x_mask)].stamp, sequence,
                     Kind::retracted);
}

void SlotSender::retracted(uint32_t sequence, bool executed) noexcept {
  std::atomic<uint64_t>& stamp = x_memory.slots[slot_of(sequence - 1, x_mask)].stamp;
  const uint64_t seen = stamp.load(std::memory_order_relaxed);
  store_release(stamp, with_kind(seen, executed ? Kind::skipped : Kind::retractable));
}

bool RingReceiver::parked() const noexcept {
  return kind_of(stamp()) == Kind::retracted;
}

bool RingReceiver::take() noexcept {
  return change_kind(x_memory.slots[slot_of(x_tail, x_mask)].stamp, x_tail + 1, Kind::taken);
}

// For longer payloads, and those in pieces. Returns the bits for the stamp, or kNoRoom.
uint32_t SlotSender::put(Slot& slot, const iovec* payload, size_t count, size_t length) noexcept {
  if (length > kSlotPayload)
    return x_memory.bytes
               ? static_cast<RingSender*>(this)->put_bytes(payload, count, uint32_t(length))
               : kNoRoom;
  if (length) hmem::gather(slot.payload, payload, count, 0, length);
  return 0;
}

hmem::CopyChoice::Choice choose_copy(hmem::CopyChoice* copy, StreamingPolicy streaming,
                                     size_t length) noexcept {
  using hmem::CopyMethod;
  if (length < hmem::CopyChoice::kLeast || !copy) return {CopyMethod::loop, false};
  if (streaming == StreamingPolicy::always) return {CopyMethod::stream, false};
  return copy->choose(length,
                      {hmem::string_copies_possible(), streaming == StreamingPolicy::calibrate});
}

uint32_t RingSender::put_bytes(const iovec* payload, size_t count, uint32_t length) noexcept {
  if (length > kMaxEager) return kNoRoom;
  uint32_t place = leaves_gap(count, length) ? kBehindGap : 0;
  uint32_t at = place_payload(x_byte_head, length, place != 0);
  if (starts_over(at, length)) {
    at = restart_payload(x_byte_head);
    place = kRestart;
  }
  if (!bytes_fit(at, length)) return kNoRoom;
  std::byte* to = x_memory.bytes + (at & (kByteRing - 1));
  if (count == 1) {
    write_bytes(to, payload->iov_base, length);
  } else {
    hmem::for_each_part(payload, count, 0, length,
                        [to](const std::byte* part, size_t done, size_t bytes) {
                          if (bytes > kLongPayload)
                            return hmem::copy_payload(to + done, part, bytes);
                          copy_to_owned(to + done, part, uint32_t(bytes));
                        });
  }
  if ((at & (kByteRing - 1)) == 0) {
    x_round_end = x_byte_head, x_unused = at - x_byte_head;
    taken_up_to(x_byte_tail);
  }
  x_byte_head = after_payload(at, length);
  const bool is_short = length < kLeastWholeRound;
  if (x_rings) (is_short ? x_rings->of_short : x_rings->of_others).add(this);
  x_only_short = is_short && (x_only_short || (at & (kByteRing - 1)) == 0);
  if (x_first_bytes < kWarm && !is_short) x_first_bytes += length;
  x_written = std::max(x_written, (at & (kByteRing - 1)) + length);
  if (x_byte_ring_bytes) *x_byte_ring_bytes += length;
  return place;
}

/// What is streamed is read from memory, where fetching ahead is no loss, and a core that both
/// sides share has each line.
bool RingSender::leaves_gap(size_t count, uint32_t length) const noexcept {
  if (x_core && x_core->shared()) return false;
  if (length < hmem::CopyChoice::kLeast || !x_copy || count != 1) return true;
  return x_streaming != StreamingPolicy::always && !x_copy->streams(length);
}

/// True if a payload that would lie at `at` goes to the beginning instead.
bool RingSender::starts_over(uint32_t at, uint32_t length) noexcept {
  const uint32_t offset = at & (kByteRing - 1);
  if (offset == 0) return false;
  if (offset + length > x_end) [[unlikely]]
    return !goes_beyond_backed();
  if (x_core && x_core->shared()) return restarts_if_empty();
  if (length < kLeastWholeRound) return ends_short_round(offset) && restarts_if_empty();
  return ends_round(offset) && bytes_fit(restart_payload(x_byte_head), length);
}

/// The bytes up to the end of the ring become room for the next payloads.
bool RingSender::restarts_if_empty() noexcept {
  if (uint32_t(x_seen) != x_head) refresh();
  if (uint32_t(x_seen) != x_head) return false;
  x_byte_tail = restart_payload(x_byte_head);
  return true;
}

/// Where the receiver lags behind, payloads go on to the end of the ring. So they do behind others
/// than short ones, which shall not be kept in a small part.
bool RingSender::ends_short_round(uint32_t offset) const noexcept {
  return x_only_short &&
         (offset - kFirstRound < kMostShortStride ||
          (offset - kRoundOfMany < kMostShortStride && one_of_many(&RecentRings::of_short)));
}

/// A round that ends here is counted once, also if the receiver lags behind, so that no payload
/// goes to the beginning.
bool RingSender::ends_round(uint32_t offset) noexcept {
  if (x_round < kByteRing && offset - x_round < kMostStride) {
    const uint32_t end = restart_payload(x_byte_head);
    if (std::exchange(x_counted, end) != end && ++x_rounds == kRoundsEach)
      x_round *= 2, x_rounds = 0;
    return true;
  }
  return offset - kShortRound < kMostStride && one_of_many(&RecentRings::of_others);
}

/// Counts that payloads reach the end of the backed part, also once for each cycle. False: the next
/// one goes to the beginning even if it has to wait for room there. Short ones fill all slots
/// before.
bool RingSender::goes_beyond_backed() noexcept {
  if (!x_backing || x_only_short || (x_core && x_core->shared()) ||
      one_of_many(&RecentRings::of_others))
    return false;
  const uint32_t end = restart_payload(x_byte_head);
  if (std::exchange(x_counted, end) == end || ++x_ends < kRoundsEach) return false;
  if (std::exchange(x_backing, nullptr)->back_rest()) x_end = x_round = kByteRing;
  return x_end == kByteRing;
}

bool RingSender::bytes_fit(uint32_t at, uint32_t length) noexcept {
  const uint32_t end = after_payload(at, length);
  return end - x_byte_tail <= kByteRing || (refresh(), end - x_byte_tail <= kByteRing);
}

// A payload is not split at the end, so up to kMostStride bytes stay unused there. What a round
// left unused is no room before the receiver has taken all of it.
bool RingSender::room_for_bytes(uint32_t bytes) noexcept {
  const uint32_t most = bytes + kMostStride;
  const auto fit = [&] {
    return held_from(x_byte_tail) + most <= x_end && x_byte_head - x_byte_tail + most <= kByteRing;
  };
  return fit() || (refresh(), fit());
}

bool RingSender::moves() noexcept {
  if (std::exchange(x_stuck_at, x_seen) != x_seen) x_stuck = 0;
  return ++x_stuck <= kPatience;
}

void RingSender::write_bytes(std::byte* to, const void* from, uint32_t length) noexcept {
  const hmem::CopyChoice::Choice choice = choose_copy(x_copy, x_streaming, length);
  if (!choice.timed) [[likely]]
    return copy_by(choice.method, to, from, length);
  const util::SystemClock clock;
  wait_for_stores();
  const uint64_t start = clock.now();
  copy_by(choice.method, to, from, length);
  wait_for_stores();
  x_copy->record(length, choice.method, clock.now() - start);
}

// Finds the payload of an entry in the byte ring; `word` is the upper half of the stamp.
void RingReceiver::find_bytes(RingEntry& entry, uint32_t word) noexcept {
  if (!x_memory.bytes || entry.length > kMaxEager) {
    entry.kind = kBroken;
    return;
  }
  // The next slot is far from this one, so no core fetches it by itself; a stream of payloads
  // between far cores would wait for its line each time.
  __builtin_prefetch(&x_memory.slots[slot_of(x_tail + 1, x_mask)]);
  x_byte_before = x_byte_tail;
  x_byte_tail = word & kRestart
                    ? restart_payload(x_byte_tail)
                    : place_payload(x_byte_tail, entry.length, (word & kBehindGap) != 0);
  entry.payload = x_memory.bytes + (x_byte_tail & (kByteRing - 1));
  x_byte_tail = after_payload(x_byte_tail, entry.length);
  // A sender of long payloads runs out of bytes long before a quarter of the slots is used. It
  // shall continue while this side copies.
  if (x_byte_tail - x_byte_published >= kPublishBytes) x_publish_at = x_tail + 1;
}

}  // namespace erdma::transport::shm
