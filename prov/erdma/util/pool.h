#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "util/left_over.h"

namespace erdma::util {

/// Names one acquisition of a pool slot; find() of a stale handle returns null. A handle is small
/// enough for the wire. Generation 0 is never used, so 0 means "none" wherever a handle, or a token
/// made of one, is sent.
struct PoolHandle {
  uint32_t index = UINT32_MAX;
  uint16_t generation = 0;

  /// The handle as a number below 2^48; of() also accepts numbers with other bits above.
  constexpr uint64_t number() const noexcept { return index | uint64_t(generation) << 32; }
  static constexpr PoolHandle of(uint64_t number) noexcept {
    return {uint32_t(number), uint16_t(number >> 32)};
  }
};

/// Objects of one type in chunks of kChunk that never move, recycled last-in first-out. Not
/// thread-safe. Allocating a chunk touches each of its slots, so pools that exist per peer use
/// small chunks. Invariant: the generation of a slot changes at each release, so find() of a
/// released handle is null.
template <typename T, uint32_t kChunk = 64>
class Pool {
 public:
  explicit Pool(uint32_t limit = UINT32_MAX) noexcept : x_limit(limit) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    expect_none_left(__PRETTY_FUNCTION__, x_in_use);
    clear();
  }

  /// Releases all objects that are in use, for owners that end together with their objects.
  void clear() noexcept {
    for (uint32_t i = 0; i < x_slots_made; ++i)
      if (slot(i).live) release(*object(slot(i)));
  }

  /// Null: the limit is reached or memory is exhausted.
  template <typename... Args>
  T* acquire(Args&&... args) noexcept {
    static_assert(std::is_nothrow_constructible_v<T, Args...>);
    if (!x_free && !grow()) [[unlikely]]
      return nullptr;
    Slot* taken = x_free;
    x_free = taken->next_free;
    taken->live = true;
    ++x_in_use;
    // Default-, not value-initialised: members of T without an initializer stay indeterminate.
    if constexpr (sizeof...(Args) == 0)
      return new (taken->storage) T;
    else
      return new (taken->storage) T(std::forward<Args>(args)...);
  }

  /// Makes sure that the next acquire() succeeds. False: as null from acquire().
  [[nodiscard]] bool reserve() noexcept { return x_free || grow(); }

  void release(T& object) noexcept {
    Slot& freed = slot_of(object);
    object.~T();
    freed.live = false;
    if (++freed.generation == 0) freed.generation = 1;
    freed.next_free = x_free;
    x_free = &freed;
    --x_in_use;
  }

  PoolHandle handle(T& object) noexcept {
    const Slot& slot = slot_of(object);
    return {slot.index, slot.generation};
  }

  T* find(PoolHandle handle) noexcept {
    if (handle.index >= x_slots_made) return nullptr;
    Slot& found = slot(handle.index);
    return found.live && found.generation == handle.generation ? object(found) : nullptr;
  }

  uint32_t in_use() const noexcept { return x_in_use; }
  uint32_t limit() const noexcept { return x_limit; }

 private:
  struct Slot {
    alignas(T) unsigned char storage[sizeof(T)];
    Slot* next_free;
    uint32_t index;
    uint16_t generation;
    bool live;
  };

  static T* object(Slot& slot) noexcept { return std::launder(reinterpret_cast<T*>(slot.storage)); }
  static Slot& slot_of(T& object) noexcept { return *reinterpret_cast<Slot*>(&object); }
  Slot& slot(uint32_t index) noexcept { return x_chunks[index / kChunk][index % kChunk]; }

  [[gnu::noinline, gnu::cold]] bool grow() noexcept try {
    if (x_slots_made >= x_limit) return false;
    x_chunks.push_back(std::unique_ptr<Slot[]>(new Slot[kChunk]));
    Slot* chunk = x_chunks.back().get();
    for (uint32_t i = kChunk; i-- > 0;) {
      chunk[i].index = x_slots_made + i;
      chunk[i].generation = 1;
      chunk[i].live = false;
      if (chunk[i].index >= x_limit) continue;
      chunk[i].next_free = x_free;
      x_free = &chunk[i];
    }
    x_slots_made += kChunk;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  std::vector<std::unique_ptr<Slot[]>> x_chunks;
  Slot* x_free = nullptr;
  uint32_t x_slots_made = 0;
  uint32_t x_in_use = 0;
  uint32_t x_limit;
};

}  // namespace erdma::util
