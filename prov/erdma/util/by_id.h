#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "util/ref.h"

namespace erdma::util {

/// Objects that are found by their member `id`. Each new one has the highest id, so a sorted vector
/// serves, which takes a quarter of the memory of a hash table. Not thread-safe.
template <typename T>
class ById {
 public:
  auto begin() const noexcept { return x_objects.begin(); }
  auto end() const noexcept { return x_objects.end(); }

  /// May throw std::bad_alloc; then nothing has changed.
  void add(Ref<T> object) { x_objects.push_back(std::move(object)); }
  /// Null: there is none.
  Ref<T> find(uint64_t id) const noexcept {
    const size_t at = place_of(id);
    return at < x_objects.size() && x_objects[at]->id == id ? x_objects[at] : nullptr;
  }
  /// False: there is none.
  bool erase(uint64_t id) noexcept {
    const size_t at = place_of(id);
    if (at == x_objects.size() || x_objects[at]->id != id) return false;
    x_objects.erase(x_objects.begin() + ptrdiff_t(at));
    return true;
  }

 private:
  size_t place_of(uint64_t id) const noexcept {
    return size_t(
        std::ranges::lower_bound(x_objects, id, {}, [](const auto& object) { return object->id; }) -
        x_objects.begin());
  }

  std::vector<Ref<T>> x_objects;
};

}  // namespace erdma::util
