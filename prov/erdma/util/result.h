#pragma once

#include <utility>
#include <variant>

namespace erdma::util {

/// A value or a negative fi_errno. Test it before use. If it holds a value, error() is 0.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : x_state(std::in_place_index<0>, std::move(value)) {}
  Result(int negative_errno) : x_state(std::in_place_index<1>, negative_errno) {}

  explicit operator bool() const noexcept { return x_state.index() == 0; }
  int error() const noexcept { return *this ? 0 : *std::get_if<1>(&x_state); }
  T& operator*() noexcept { return *std::get_if<0>(&x_state); }
  T* operator->() noexcept { return std::get_if<0>(&x_state); }

 private:
  std::variant<T, int> x_state;
};

}  // namespace erdma::util
