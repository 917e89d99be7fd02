#pragma once

#include <atomic>
#include <cstddef>

namespace erdma::util {

/// Called when an owner is destroyed before all objects that it handed out have been returned. Only
/// tests set it; the data path does not read it.
using LeftOver = void (*)(const char* what, size_t number) noexcept;
inline std::atomic<LeftOver> tell_left_over{nullptr};

/// For destructors: reports that `number` objects of type `what` have not been returned.
inline void expect_none_left(const char* what, size_t number) noexcept {
  if (number == 0) return;
  if (const LeftOver tell = tell_left_over.load(std::memory_order_relaxed)) tell(what, number);
}

}  // namespace erdma::util
