#include "fabric/address_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

namespace erdma::fabric {

using util::SocketAddress;

AddressTable::AddressTable(sa_family_t family, Canonical canonical) noexcept
    : x_family(family),
      x_record_bytes(sizeof(Record) + (family == AF_INET6 ? sizeof(in6_addr) : 0)),
      x_canonical(std::move(canonical)) {}

int64_t AddressTable::insert(const SocketAddress& address) noexcept try {
  if (!address.set() || address.family() != x_family) return -FI_EINVAL;
  if (!reserve_index()) return -FI_ENOMEM;
  reserve_slot();
  const SocketAddress key = x_canonical(address);
  const auto hash = static_cast<uint32_t>(key.hash());
  const uint32_t index = lowest_free();
  store(index, address);
  x_used[index / 64] |= uint64_t{1} << (index % 64);
  ++x_size;
  Slot& slot = x_slots[slot_of(key, hash)];
  if (slot.index == kNone) {
    slot = {index, hash};
    ++x_distinct;
    record(index).previous = record(index).next = index;
  } else {
    link(index, slot);
  }
  return index;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

bool AddressTable::remove(uint64_t index) noexcept {
  if (!contains(index)) return false;
  const auto gone = static_cast<uint32_t>(index);
  const SocketAddress key = canonical(gone);
  const size_t slot = slot_of(key, static_cast<uint32_t>(key.hash()));
  const Record& removed = record(gone);
  if (removed.next == gone) {
    erase_slot(slot);
  } else {
    record(removed.previous).next = removed.next;
    record(removed.next).previous = removed.previous;
    if (x_slots[slot].index == gone) x_slots[slot].index = removed.next;
  }
  x_used[gone / 64] &= ~(uint64_t{1} << (gone % 64));
  x_first_word = std::min<size_t>(x_first_word, gone / 64);
  --x_size;
  return true;
}

bool AddressTable::contains(uint64_t index) const noexcept {
  return index / 64 < x_used.size() && (x_used[index / 64] >> (index % 64) & 1);
}

SocketAddress AddressTable::inserted(uint64_t index) const noexcept {
  return contains(index) ? load(static_cast<uint32_t>(index)) : SocketAddress();
}

SocketAddress AddressTable::canonical(uint64_t index) const noexcept {
  return contains(index) ? x_canonical(load(static_cast<uint32_t>(index))) : SocketAddress();
}

uint64_t AddressTable::find(const SocketAddress& canonical) const noexcept {
  if (x_slots.empty() || canonical.family() != x_family) return UINT64_MAX;
  const uint32_t found = x_slots[slot_of(canonical, static_cast<uint32_t>(canonical.hash()))].index;
  return found == kNone ? UINT64_MAX : found;
}

size_t AddressTable::memory_usage() const noexcept {
  return sizeof(*this) + x_chunks.size() * kChunk * x_record_bytes +
         x_chunks.capacity() * sizeof(x_chunks[0]) + x_used.capacity() * sizeof(x_used[0]) +
         x_slots.capacity() * sizeof(Slot);
}

AddressTable::Record& AddressTable::record(uint32_t index) const noexcept {
  std::byte* bytes = x_chunks[index / kChunk].get() + index % kChunk * x_record_bytes;
  return *std::launder(reinterpret_cast<Record*>(bytes));
}

SocketAddress AddressTable::load(uint32_t index) const noexcept {
  const Record& from = record(index);
  if (x_family == AF_INET6)
    return SocketAddress::from_ip(AF_INET6, &from + 1, from.port, from.ip4_or_scope);
  return SocketAddress::from_ip(AF_INET, &from.ip4_or_scope, from.port);
}

void AddressTable::store(uint32_t index, const SocketAddress& address) noexcept {
  std::byte* bytes = x_chunks[index / kChunk].get() + index % kChunk * x_record_bytes;
  const std::span<const std::byte> ip = address.ip();
  auto* to = new (bytes) Record{};
  to->port = address.port();
  to->ip4_or_scope = address.scope();
  std::memcpy(x_family == AF_INET6 ? bytes + sizeof(Record)
                                   : reinterpret_cast<std::byte*>(&to->ip4_or_scope),
              ip.data(), ip.size());
}

/// Makes sure that an index is free. False: all 2^32 indices are taken.
bool AddressTable::reserve_index() {
  if (x_size < x_chunks.size() * kChunk) return true;
  if (x_chunks.size() >= kNone / kChunk) return false;
  x_used.resize((x_chunks.size() + 1) * (kChunk / 64));
  x_chunks.push_back(std::unique_ptr<std::byte[]>(new std::byte[kChunk * x_record_bytes]));
  return true;
}

uint32_t AddressTable::lowest_free() noexcept {
  while (!~x_used[x_first_word]) ++x_first_word;
  return static_cast<uint32_t>(x_first_word * 64 + size_t(std::countr_one(x_used[x_first_word])));
}

/// Keeps a quarter of the slots free, so that every probe terminates.
void AddressTable::reserve_slot() {
  if ((x_distinct + 1) * 4 <= x_slots.size() * 3) return;
  std::vector<Slot> slots(std::max<size_t>(16, x_slots.size() * 2), Slot{kNone, 0});
  const size_t mask = slots.size() - 1;
  for (const Slot& slot : x_slots) {
    if (slot.index == kNone) continue;
    size_t at = slot.hash & mask;
    while (slots[at].index != kNone) at = (at + 1) & mask;
    slots[at] = slot;
  }
  x_slots = std::move(slots);
}

/// The slot of the address, or the free slot where it must be inserted.
size_t AddressTable::slot_of(const SocketAddress& canonical, uint32_t hash) const noexcept {
  const size_t mask = x_slots.size() - 1;
  size_t at = hash & mask;
  for (; x_slots[at].index != kNone; at = (at + 1) & mask)
    if (x_slots[at].hash == hash && x_canonical(load(x_slots[at].index)) == canonical) break;
  return at;
}

/// Moves later members of the probe chain forward, so that no tombstone is needed.
void AddressTable::erase_slot(size_t slot) noexcept {
  const size_t mask = x_slots.size() - 1;
  size_t hole = slot;
  for (size_t at = (hole + 1) & mask; x_slots[at].index != kNone; at = (at + 1) & mask) {
    const size_t home = x_slots[at].hash & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    x_slots[hole] = x_slots[at];
    hole = at;
  }
  x_slots[hole].index = kNone;
  --x_distinct;
}

/// Inserts a duplicate into the ring of equal addresses, which is sorted by index.
void AddressTable::link(uint32_t index, Slot& head) noexcept {
  uint32_t before = head.index;
  if (index < head.index) {
    head.index = index;
  } else if (index < record(before).previous) {
    while (before < index) before = record(before).next;
  }
  Record& added = record(index);
  added.next = before;
  added.previous = record(before).previous;
  record(added.previous).next = index;
  record(before).previous = index;
}

}  // namespace erdma::fabric
