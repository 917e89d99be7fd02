#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace erdma::util {

template <typename T>
class Ref;

/// The base of objects that delete themselves with their last Ref. Threads may share one object,
/// but not one Ref.
class Counted {
 public:
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 protected:
  Counted() noexcept = default;
  ~Counted() = default;

 private:
  template <typename T>
  friend class Ref;
  std::atomic<uint32_t> x_references{0};
};

/// A reference to an object of a class derived from Counted, or null. Unlike std::shared_ptr, it
/// takes 8 bytes, needs no block beside the object, and can be made of the object itself.
template <typename T>
class Ref {
 public:
  Ref() noexcept = default;
  Ref(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor): as a pointer
  explicit Ref(T& object) noexcept : Ref(&object) {}
  Ref(const Ref& other) noexcept : Ref(other.x_object) {}
  Ref(Ref&& other) noexcept : x_object(std::exchange(other.x_object, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(x_object, other.x_object);
    return *this;
  }
  ~Ref() {
    if (x_object && count().fetch_sub(1, std::memory_order_acq_rel) == 1) delete x_object;
  }

  T* get() const noexcept { return x_object; }
  T& operator*() const noexcept { return *x_object; }
  T* operator->() const noexcept { return x_object; }
  explicit operator bool() const noexcept { return x_object != nullptr; }
  bool operator==(const Ref& other) const noexcept = default;

 private:
  explicit Ref(T* object) noexcept : x_object(object) {
    if (object) count().fetch_add(1, std::memory_order_relaxed);
  }
  std::atomic<uint32_t>& count() const noexcept {
    return static_cast<Counted*>(x_object)->x_references;
  }

  T* x_object = nullptr;
};

template <typename T, typename... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(*new T(std::forward<Args>(args)...));
}

}  // namespace erdma::util
