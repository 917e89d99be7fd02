#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace softerdma {

/// Owns a shared mapping of a whole file. It is null if the mapping failed (errno has the reason).
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept
      : x_address(std::exchange(other.x_address, nullptr)),
        x_size(std::exchange(other.x_size, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(x_address, other.x_address);
    std::swap(x_size, other.x_size);
    return *this;
  }
  ~Mapping();

  /// Creates a file of zeros that replaces any of the same name.
  static Mapping create(const std::string& path, size_t size);
  static Mapping open(const std::string& path);
  static Mapping of(int fd, size_t size);

  explicit operator bool() const noexcept { return x_address != nullptr; }
  size_t size() const noexcept { return x_size; }
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(x_address);
  }

 private:
  void* x_address = nullptr;
  size_t x_size = 0;
};

}  // namespace softerdma
