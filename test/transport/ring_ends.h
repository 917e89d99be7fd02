#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "libcheck.h"
#include "transport/shm/ring.h"

/// Both ends of a ring in one process.
namespace erdma::test {

using namespace erdma::transport::shm;
using erdma::transport::Header;

inline constexpr uint32_t kStarts[] = {0, 1, 0xFFFFFFFF, 0xFFFFFFC0, 0xFFFFF000, 0x7FFFFFF0};

/// A hot or cold ring in private memory, so that ASan reports stray accesses.
struct Ring {
  explicit Ring(bool hot, uint32_t start = 0) {
    if (hot)
      hot_memory = std::make_unique<HotSegment>();
    else
      chunk = std::make_unique<ColdChunk>();
    memory = hot ? RingMemory::hot(*hot_memory) : RingMemory::cold(*chunk, kColdRings - 1);
    reset_ring(memory, start);
    sender = RingSender(memory, start);
    receiver = RingReceiver(memory, start);
  }
  bool push(uint64_t number, const void* payload = nullptr, size_t length = 0,
            Kind kind = Kind::packet) {
    Header header{};
    std::memcpy(header.bytes, &number, sizeof(number));
    const iovec iov{const_cast<void*>(payload), length};
    return sender.push(kind, &header, &iov, 1, length);
  }
  std::unique_ptr<HotSegment> hot_memory;
  std::unique_ptr<ColdChunk> chunk;
  RingMemory memory;
  RingSender sender;
  RingReceiver receiver;
};

inline uint64_t number_of(const RingEntry& entry) {
  uint64_t number;
  std::memcpy(&number, entry.header, sizeof(number));
  return number;
}

/// Length and content of message `number`; both threads compute them.
inline size_t length_of(uint64_t number, bool hot) {
  const uint64_t mixed = number * 2654435761u >> 7;
  return hot && mixed % 3 ? mixed % (kMaxEager + 1) : mixed % (kSlotPayload + 1);
}
inline std::byte byte_of(uint64_t number) {
  return std::byte(number * 131 + 7);
}

inline void take_one(Ring& ring, uint64_t expected, size_t length) {
  RingEntry entry;
  ck_assert(ring.receiver.ready());
  ck_assert(ring.receiver.next(entry));
  ck_assert_uint_eq(number_of(entry), expected);
  ck_assert_uint_eq(entry.length, length);
  if (ring.receiver.advance()) ring.receiver.publish();
}

}  // namespace erdma::test
