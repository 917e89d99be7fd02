#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcheck.h"
#include "vm/erdma/layout.h"
#include "vm/erdma/model.h"

/// The parts of a host that the adapter uses: memory by bus address, a BAR, interrupts and a clock.
namespace ermodel::test {

inline constexpr uint64_t kPage = 4096;

/// Each allocation has its own heap block, and bus addresses of allocations are not adjacent, so an
/// access beyond one is found.
class Memory {
 public:
  uint64_t allocate(uint64_t bytes) {
    const uint64_t address = x_next;
    x_next += (bytes + 3 * kPage) & ~(kPage - 1);
    void* block = std::aligned_alloc(kPage, (bytes + kPage - 1) & ~(kPage - 1));
    std::memset(block, 0, bytes);
    x_blocks.emplace(address, Block{{block, std::free}, bytes});
    return address;
  }
  void release(uint64_t address) { x_blocks.erase(address); }

  /// Returns null if there is no memory.
  void* find(uint64_t address, uint64_t length) {
    auto block = x_blocks.upper_bound(address);
    if (block == x_blocks.begin()) return nullptr;
    --block;
    const uint64_t at = address - block->first;
    if (at >= block->second.size || length > block->second.size - at) return nullptr;
    return static_cast<char*>(block->second.bytes.get()) + at;
  }
  template <class T>
  T* at(uint64_t address, uint64_t count = 1) {
    void* found = find(address, count * sizeof(T));
    ck_assert_ptr_nonnull(found);
    return static_cast<T*>(found);
  }

 private:
  struct Block {
    std::unique_ptr<void, void (*)(void*)> bytes;
    uint64_t size;
  };
  std::map<uint64_t, Block> x_blocks;
  uint64_t x_next = 1 << 20;
};

/// The target of the hooks of one device.
struct Slot {
  explicit Slot(Memory& memory_) : memory(memory_) {}

  template <class T>
  T& bar_at(uint32_t at) {
    ck_assert_uint_le(at + sizeof(T), sizeof(bar));
    return reinterpret_cast<T&>(bar[at]);
  }

  Memory& memory;
  alignas(8) char bar[ERM_BAR_SIZE] = {};
  std::vector<unsigned> raised;  ///< number of interrupts by vector
  std::vector<std::string> said;
  uint64_t now = 1000;
};

inline Slot& slot_of(void* context) {
  return *static_cast<Slot*>(context);
}

inline const erm_hooks kHooks = {
    .memory = [](void* context, uint64_t address,
                 uint64_t length) { return slot_of(context).memory.find(address, length); },
    .read_register = [](void* context,
                        uint32_t at) { return slot_of(context).bar_at<uint32_t>(at); },
    .write_register = [](void* context, uint32_t at,
                         uint32_t value) { slot_of(context).bar_at<uint32_t>(at) = value; },
    .read_doorbell = [](void* context,
                        uint32_t at) { return slot_of(context).bar_at<uint64_t>(at); },
    .write_doorbell = [](void* context, uint32_t at,
                         uint64_t value) { slot_of(context).bar_at<uint64_t>(at) = value; },
    .raise =
        [](void* context, unsigned vector) {
          Slot& slot = slot_of(context);
          if (slot.raised.size() <= vector) slot.raised.resize(vector + 1);
          ++slot.raised[vector];
        },
    .now = [](void* context) { return slot_of(context).now; },
    .say = [](void* context, const char* line) { slot_of(context).said.push_back(line); },
};

/// Memory of a program, in scattered pages with a table.
struct Pages {
  Pages(Memory& memory_, uint64_t bytes, uint64_t offset_ = 0) : memory(memory_), offset(offset_) {
    const uint64_t count = (offset + bytes + kPage - 1) / kPage;
    table = memory.allocate(count * 8);
    for (uint64_t i = 0; i < count; ++i) {
      pages.push_back(memory.allocate(kPage));
      memory.at<uint64_t>(table, count)[i] = pages.back();
    }
  }
  /// Returns one byte of the memory, which is contiguous for a program.
  uint8_t& operator[](uint64_t at) {
    return *memory.at<uint8_t>(pages.at((offset + at) / kPage) + (offset + at) % kPage);
  }
  void fill(uint64_t at, uint64_t length, unsigned seed) {
    for (uint64_t i = 0; i < length; ++i) (*this)[at + i] = byte(seed, i);
  }
  bool holds(uint64_t at, uint64_t length, unsigned seed) {
    for (uint64_t i = 0; i < length; ++i)
      if ((*this)[at + i] != byte(seed, i)) return false;
    return true;
  }
  static uint8_t byte(unsigned seed, uint64_t i) {
    return static_cast<uint8_t>(seed + i * 7 + i / 251);
  }

  Memory& memory;
  uint64_t offset, table = 0;
  std::vector<uint64_t> pages;
};

}  // namespace ermodel::test
