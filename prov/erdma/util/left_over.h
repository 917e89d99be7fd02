#pragma once

#include <atomic>
#include <cstddef>

namespace erdma::util {

/// Is told what an owner had lent and not got back when it ended. Only tests set it; nothing on
/// the data path looks at it.
using LeftOver = void (*)(const char* what, size_t number) noexcept;
inline std::atomic<LeftOver> tell_left_over{nullptr};

/// For destructors: `number` of `what` should be back by now.
inline void expect_none_left(const char* what, size_t number) noexcept {
  if (number == 0) return;
  if (const LeftOver tell = tell_left_over.load(std::memory_order_relaxed)) tell(what, number);
}

}  // namespace erdma::util
