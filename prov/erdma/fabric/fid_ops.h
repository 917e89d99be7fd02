#pragma once

#include <sys/types.h>

#include <cstddef>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "fabric/abi.h"

/// Tables of entry points. An entry point is a method of the object, or a refusal.
namespace erdma::fabric {

/// Fills a slot of any signature: the entry point refuses every call.
template <int kError>
struct Refusal {
  template <typename Result, typename... Args>
  using EntryPoint = Result (*)(Args...);
  template <typename Result, typename... Args>
  static Result refuse(Args...) noexcept {
    return kError;
  }
  template <typename Result, typename... Args>
  constexpr operator EntryPoint<Result, Args...>() const noexcept {
    return refuse<Result, Args...>;
  }
};

inline constexpr Refusal<-FI_ENOSYS> kNotOffered;

/// A table that refuses every call.
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

}  // namespace erdma::fabric
