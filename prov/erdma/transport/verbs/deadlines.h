#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

namespace erdma::transport::verbs {

/// Which of many objects is due next. `T` has a `uint64_t deadline` (0 = none) that only this class
/// writes, stays where it is, and clear()s before it goes.
template <typename T>
class Deadlines {
 public:
  void set(T& object, uint64_t when) {
    clear(object);
    x_order.emplace(when, &object);
    object.deadline = when;
  }
  void clear(T& object) noexcept {
    if (object.deadline) x_order.erase({object.deadline, &object});
    object.deadline = 0;
  }
  uint64_t next() const noexcept { return x_order.empty() ? UINT64_MAX : x_order.begin()->first; }
  /// The one that is due first; null: none is. It stays in.
  T* due(uint64_t now) const noexcept { return next() <= now ? x_order.begin()->second : nullptr; }
  T* first() const noexcept { return x_order.empty() ? nullptr : x_order.begin()->second; }
  size_t size() const noexcept { return x_order.size(); }

 private:
  std::set<std::pair<uint64_t, T*>> x_order;
};

}  // namespace erdma::transport::verbs
