#pragma once

#include <atomic>
#include <cstddef>

namespace erdma::util {

/// Called when an owner ends while objects that it handed out are not back. Only tests set it;
/// nothing on the data path reads it.
using LeftOver = void (*)(const char* what, size_t number) noexcept;
inline std::atomic<LeftOver> tell_left_over{nullptr};

/// For destructors: `number` objects of the kind `what` are not back.
inline void expect_none_left(const char* what, size_t number) noexcept {
  if (number == 0) return;
  if (const LeftOver tell = tell_left_over.load(std::memory_order_relaxed)) tell(what, number);
}

}  // namespace erdma::util
