#pragma once

#include <concepts>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

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

}  // namespace erdma::fabric
