#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <set>
#include <utility>

namespace erdma::transport::verbs {

/// Tells which of many objects is due next. `T` has a `uint64_t deadline` (0 = none) that only this
/// class writes; it must not move. add() must precede the object's first deadline and allocates for
/// it, so that no other function here needs memory.
template <typename T>
class Deadlines {
 public:
  /// Adds an object without a deadline. False: no memory.
  [[nodiscard]] bool add(T& object) noexcept try {
    return x_order.emplace(kNone, &object).second;
  } catch (const std::bad_alloc&) {
    return false;
  }
  /// Call before the object is destroyed. Ignores objects that were not added.
  void remove(T& object) noexcept {
    clear(object);
    x_order.erase({kNone, &object});
  }
  void set(T& object, uint64_t when) noexcept {
    clear(object);
    move(object, kNone, when);
    object.deadline = when;
    ++x_size;
  }
  void clear(T& object) noexcept {
    if (!object.deadline) return;
    move(object, object.deadline, kNone);
    object.deadline = 0;
    --x_size;
  }
  uint64_t next() const noexcept { return x_order.empty() ? kNone : x_order.begin()->first; }
  /// The object that is due first; null: none is due. It stays in the set.
  T* due(uint64_t now) const noexcept { return next() <= now ? first() : nullptr; }
  T* first() const noexcept { return x_size ? x_order.begin()->second : nullptr; }
  /// The number of objects with a deadline.
  size_t size() const noexcept { return x_size; }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  void move(T& object, uint64_t from, uint64_t to) noexcept {
    auto node = x_order.extract({from, &object});
    node.value().first = to;
    x_order.insert(std::move(node));
  }

  std::set<std::pair<uint64_t, T*>> x_order;
  size_t x_size = 0;
};

}  // namespace erdma::transport::verbs
