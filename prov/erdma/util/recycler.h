#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "util/left_over.h"

namespace erdma::util {

/// Objects of one type in chunks of kChunk that never move, recycled last-in first-out. In contrast
/// to Pool, objects have no handles and no destructor, so a slot holds nothing but the object: of a
/// long object only the cache lines in use are touched. Not thread-safe.
template <typename T, size_t kChunk = 64>
class Recycler {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Recycler() noexcept = default;
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;
  ~Recycler() {
    if (tell_left_over.load(std::memory_order_relaxed))
      expect_none_left(__PRETTY_FUNCTION__, in_use());
  }

  /// The object is default-initialised: members without an initializer are indeterminate. Null:
  /// memory is exhausted.
  T* acquire() noexcept {
    static_assert(std::is_nothrow_default_constructible_v<T>);
    if (!x_free && !grow()) return nullptr;
    Slot* taken = x_free;
    x_free = taken->next_free;
    return new (taken->storage) T;
  }

  void release(T& object) noexcept {
    Slot* freed = reinterpret_cast<Slot*>(&object);
    freed->next_free = x_free;
    x_free = freed;
  }

 private:
  union Slot {
    alignas(T) unsigned char storage[sizeof(T)];
    Slot* next_free;
  };

  size_t in_use() const noexcept {
    size_t free = 0;
    for (const Slot* slot = x_free; slot; slot = slot->next_free) ++free;
    return x_chunks.size() * kChunk - free;
  }

  bool grow() noexcept try {
    x_chunks.push_back(std::unique_ptr<Slot[]>(new Slot[kChunk]));
    Slot* chunk = x_chunks.back().get();
    for (size_t i = kChunk; i-- > 0; x_free = &chunk[i]) chunk[i].next_free = x_free;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  std::vector<std::unique_ptr<Slot[]>> x_chunks;
  Slot* x_free = nullptr;
};

}  // namespace erdma::util
