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

/// What all objects behind a fid have in common: counting of children, and tables of entry points.
/// An entry point is a method of the object, or a refusal.
namespace erdma::fabric {

/// Runs a control-path entry point; no exception crosses the C boundary.
template <std::invocable F>
int abi_call(F&& body) noexcept try {
  return std::forward<F>(body)();
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
} catch (...) {
  return -FI_EOTHER;
}

/// Fills a slot of any signature: the entry point refuses every call.
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

/// A table that refuses every call. Tables begin as one, so they refuse what later versions of
/// libfabric add.
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

/// The entry point of a method. No exception crosses the C boundary.
template <auto kMethod, typename T = typename ClassOf<decltype(kMethod)>::Type, typename Result,
          typename Fid, typename... Args>
Result entry(Fid* fid, Args... args) noexcept {
  T& object = T::from(fid);
  if constexpr (noexcept((object.*kMethod)(args...)))
    return (object.*kMethod)(args...);
  else
    return abi_call([&] { return (object.*kMethod)(args...); });
}

/// For fid::ops of a T: its close(), bind() and control(), where it has them.
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

/// The objects that must be closed before their parent, which has this.
class Children {
 public:
  int count() const noexcept { return x_count.load(std::memory_order_relaxed); }

 private:
  friend class Child;
  std::atomic<int> x_count{0};
};

/// Counts one child, or nothing if it has no parent (in tests).
class Child {
 public:
  explicit Child(Children* siblings) noexcept : x_siblings(siblings) {
    if (x_siblings) x_siblings->x_count.fetch_add(1, std::memory_order_relaxed);
  }
  Child(Child&& other) noexcept : x_siblings(std::exchange(other.x_siblings, nullptr)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (x_siblings) x_siblings->x_count.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  Children* x_siblings;
};

/// The first base of the object behind a Fid. Its destructor runs last: the parent may be closed
/// from then on.
template <typename T, typename Fid>
class FidObject : public Fid {
 public:
  static T& from(Fid* fid) noexcept { return static_cast<T&>(*fid); }
  static T& from(fid_t fid) noexcept { return from(reinterpret_cast<Fid*>(fid)); }

  FidObject(const FidObject&) = delete;
  FidObject& operator=(const FidObject&) = delete;
  /// The parent counts the object as long as the result lives.
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
