#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "util/socket_address.h"

namespace erdma::fabric {

/// The addresses of one AV. Each address gets the lowest free index; a hash table maps a canonical
/// address to the lowest index that holds it. All addresses are of one family. Not thread-safe.
/// Memory at 10^6 addresses, hash table included: 34 bytes per IPv4 address, 50 per IPv6 address.
/// Invariant: addresses with equal canonical forms form a ring in ascending order of their indices,
/// and the hash table holds the lowest index of the ring.
class AddressTable {
 public:
  /// Must always return the same result for the same address, and keep the family.
  using Canonical = std::function<util::SocketAddress(const util::SocketAddress&)>;

  AddressTable(sa_family_t family, Canonical canonical) noexcept;

  /// Returns the index of the new entry, -FI_EINVAL (wrong family) or -FI_ENOMEM. A duplicate gets
  /// an index of its own.
  int64_t insert(const util::SocketAddress& address) noexcept;
  /// False: the index holds no address.
  bool remove(uint64_t index) noexcept;

  bool contains(uint64_t index) const noexcept;
  /// The address as it was inserted; unset if the index holds none.
  util::SocketAddress inserted(uint64_t index) const noexcept;
  util::SocketAddress canonical(uint64_t index) const noexcept;
  /// The lowest index of a canonical address, or UINT64_MAX.
  uint64_t find(const util::SocketAddress& canonical) const noexcept;

  sa_family_t family() const noexcept { return x_family; }
  size_t size() const noexcept { return x_size; }
  /// Bytes allocated.
  size_t memory_usage() const noexcept;

 private:
  /// For IPv6 the 16 bytes of the address follow.
  struct Record {
    uint32_t previous;  ///< ring of equal addresses
    uint32_t next;
    uint32_t ip4_or_scope;
    uint16_t port;
  };
  struct Slot {
    uint32_t index;
    uint32_t hash;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kChunk = 256;

  Record& record(uint32_t index) const noexcept;
  util::SocketAddress load(uint32_t index) const noexcept;
  void store(uint32_t index, const util::SocketAddress& address) noexcept;
  bool reserve_index();
  uint32_t lowest_free() noexcept;
  void reserve_slot();
  size_t slot_of(const util::SocketAddress& canonical, uint32_t hash) const noexcept;
  void erase_slot(size_t slot) noexcept;
  void link(uint32_t index, Slot& head) noexcept;

  const sa_family_t x_family;
  const size_t x_record_bytes;
  const Canonical x_canonical;
  std::vector<std::unique_ptr<std::byte[]>> x_chunks;
  std::vector<uint64_t> x_used;  ///< one bit per index
  size_t x_first_word = 0;       ///< every word of x_used before it is full
  std::vector<Slot> x_slots;     ///< open addressing, linear probing; a power of two or empty
  size_t x_distinct = 0;         ///< slots in use
  size_t x_size = 0;
};

}  // namespace erdma::fabric
