#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/memory_range.h"

namespace erdma::transport::verbs {

/// Ranges that the application is emptying (MADV_DONTNEED): the kernel reports that before it
/// empties them, and does not report when it has. So for a while new regions may refer to pages
/// that are about to go: each such region serves one use.
class Quarantines {
 public:
  explicit Quarantines(uint64_t tick_ns) noexcept : x_tick_ns(tick_ns) {}
  /// May throw std::bad_alloc; no other function here does.
  void reserve() { x_list.reserve(kMost); }

  bool empty() const noexcept { return x_list.empty(); }
  bool overlap(const MemoryRange& range) const noexcept;
  /// True: it is the first range, and age() must be called from now on.
  [[nodiscard]] bool add(const MemoryRange& range, uint64_t now) noexcept;
  void age(uint64_t now) noexcept;

 private:
  struct Quarantine {
    MemoryRange range;
    unsigned ticks = 0;
  };
  static constexpr size_t kMost = 64;
  /// A tick is a look at the clock by a thread that has slept: a stopped process has no ticks.
  static constexpr unsigned kTicks = 10;

  const uint64_t x_tick_ns;
  uint64_t x_next_tick = 0;
  std::vector<Quarantine> x_list;
};

}  // namespace erdma::transport::verbs
