#pragma once

#include <sys/types.h>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "util/no_cancellation.h"

/// The common parts of all objects behind a fid: the counting of children, and tables of entry
/// points. An entry point is a method of the object, or a refusal.
namespace erdma::fabric {

/// Runs the body of a control-path entry point, and converts exceptions to a negative fi_errno:
/// none may cross the C boundary.
template <std::invocable F>
int abi_call(F&& body) noexcept try {
  return std::forward<F>(body)();
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
} catch (...) {
  return -FI_EOTHER;
}

/// Converts to an entry point of any signature that returns kError, or null for a pointer.
template <int kError>
struct Refusal {
  template <typename Result, typename... Args>
  using EntryPoint = Result (*)(Args...);
  template <typename Result, typename... Args>
  static Result refuse(Args...) noexcept {
    if constexpr (std::is_pointer_v<Result>)
      return nullptr;
    else
      return Result(kError);
  }
  template <typename Result, typename... Args>
  constexpr operator EntryPoint<Result, Args...>() const noexcept {
    return refuse<Result, Args...>;
  }
};

inline constexpr Refusal<-FI_ENOSYS> kNotOffered;

/// A table that refuses every call. All tables start from one, so that they refuse entry points
/// which later versions of libfabric add.
template <typename Ops, int kError = -FI_ENOSYS>
constexpr Ops refusing() noexcept {
  constexpr size_t kSlots = (sizeof(Ops) - sizeof(size_t)) / sizeof(void*);
  return []<size_t... kSlot>(std::index_sequence<kSlot...>) {
    return Ops{sizeof(Ops), (static_cast<void>(kSlot), Refusal<kError>{})...};
  }
  (std::make_index_sequence<kSlots>{});
}

template <typename Member>
struct ClassOf;
template <typename Member, typename T>
struct ClassOf<Member T::*> {
  using Type = T;
};

/// The C entry point that calls a method. No exception crosses the C boundary.
template <auto kMethod, typename T = typename ClassOf<decltype(kMethod)>::Type, typename Result,
          typename Fid, typename... Args>
Result entry(Fid* fid, Args... args) noexcept {
  T& object = T::from(fid);
  if constexpr (noexcept((object.*kMethod)(args...)))
    return (object.*kMethod)(args...);
  else
    return abi_call([&] { return (object.*kMethod)(args...); });
}

/// The same of a method that may sleep.
template <auto kMethod, typename T = typename ClassOf<decltype(kMethod)>::Type, typename Result,
          typename Fid, typename... Args>
Result blocking_entry(Fid* fid, Args... args) noexcept {
  const util::NoCancellation until_return;
  return entry<kMethod, T, Result>(fid, args...);
}

/// The table fid::ops of a T: its close(), and bind() and control() if it has them.
template <typename T>
constexpr fi_ops fid_ops() noexcept {
  fi_ops ops = refusing<fi_ops>();
  ops.close = entry<&T::close, T>;
  if constexpr (requires { &T::bind; }) ops.bind = entry<&T::bind, T>;
  if constexpr (requires { &T::control; }) ops.control = entry<&T::control, T>;
  return ops;
}

template <typename T>
inline fi_ops g_fid_ops = fid_ops<T>();

/// The number of a parent's open children, which must be closed before the parent. Release and
/// acquire: a thread that sees that a child is gone may free what the child's last thread used.
class Children {
 public:
  int count() const noexcept { return x_count.load(std::memory_order_acquire); }

 private:
  friend class Child;
  std::atomic<int> x_count{0};
};

/// A member of each child, which counts it while it lives. Null `siblings`: the object has no
/// parent (in tests).
class Child {
 public:
  explicit Child(Children* siblings) noexcept : x_siblings(siblings) {
    if (x_siblings) x_siblings->x_count.fetch_add(1, std::memory_order_relaxed);
  }
  Child(Child&& other) noexcept : x_siblings(std::exchange(other.x_siblings, nullptr)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (x_siblings) x_siblings->x_count.fetch_sub(1, std::memory_order_release);
  }

 private:
  Children* x_siblings;
};

/// The first base class of the object behind a Fid, so its destructor runs last. From then on the
/// parent may be closed.
template <typename T, typename Fid>
class FidObject : public Fid {
 public:
  static T& from(Fid* fid) noexcept { return static_cast<T&>(*fid); }
  static T& from(fid_t fid) noexcept { return from(reinterpret_cast<Fid*>(fid)); }

  FidObject(const FidObject&) = delete;
  FidObject& operator=(const FidObject&) = delete;
  /// Moves the count out of the object: the parent counts it until the result is destroyed.
  Child leave() noexcept { return std::move(x_child); }

 protected:
  FidObject(size_t fclass, void* context, Children* siblings = nullptr) noexcept
      : Fid{}, x_child(siblings) {
    this->fid = {fclass, context, &g_fid_ops<T>};
  }
  ~FidObject() = default;

 private:
  Child x_child;
};

}  // namespace erdma::fabric
