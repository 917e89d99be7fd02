#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace erdma::transport::verbs {

/// Addresses [start, end) of this process.
struct MemoryRange {
  uintptr_t start = 0;
  uintptr_t end = 0;

  size_t bytes() const noexcept { return end - start; }
  bool empty() const noexcept { return start >= end; }
  bool contains(const MemoryRange& other) const noexcept {
    return start <= other.start && other.end <= end;
  }
  bool overlaps(const MemoryRange& other) const noexcept {
    return start < other.end && other.start < end;
  }
};

inline constexpr MemoryRange kAllAddresses{0, UINTPTR_MAX};

/// A rough set of addresses, which only grows and takes no lock: it has all that were added, and
/// others. Thread-safe.
class AddressFilter {
 public:
  void add(const MemoryRange& range) noexcept { x_blocks.fetch_or(blocks_of(range)); }
  bool may_overlap(const MemoryRange& range) const noexcept {
    return (x_blocks.load() & blocks_of(range)) != 0;
  }

 private:
  /// A bit for each 64 MiB, modulo 4 GiB.
  static uint64_t blocks_of(const MemoryRange& range) noexcept {
    constexpr unsigned kShift = 26, kBits = 64;
    if (range.empty()) return 0;
    const uintptr_t first = range.start >> kShift, last = (range.end - 1) >> kShift;
    if (last - first >= kBits - 1) return UINT64_MAX;
    return std::rotl((uint64_t(2) << (last - first)) - 1, int(first % kBits));
  }

  std::atomic<uint64_t> x_blocks{0};
};

/// A set of addresses. Invariant: its ranges are ordered and do not touch.
class MemoryRanges {
 public:
  void add(MemoryRange added) {
    const auto first = std::lower_bound(x_ranges.begin(), x_ranges.end(), added.start, ends_before);
    auto last = first;
    for (; last != x_ranges.end() && last->start <= added.end; ++last) {
      added.start = std::min(added.start, last->start);
      added.end = std::max(added.end, last->end);
    }
    if (first == last) {
      x_ranges.insert(first, added);
    } else {
      *first = added;
      x_ranges.erase(first + 1, last);
    }
  }

  void subtract(const MemoryRange& taken) {
    auto at = std::lower_bound(x_ranges.begin(), x_ranges.end(), taken.start, ends_before);
    while (at != x_ranges.end() && at->start < taken.end) {
      const MemoryRange left{at->start, std::min(at->end, taken.start)};
      const MemoryRange right{std::max(at->start, taken.end), at->end};
      if (!left.empty() && !right.empty()) {
        *at = left;
        x_ranges.insert(at + 1, right);
        return;
      }
      if (left.empty() && right.empty()) {
        at = x_ranges.erase(at);
      } else {
        *at++ = left.empty() ? right : left;
      }
    }
  }

  bool contains(const MemoryRange& range) const noexcept {
    const auto at = std::lower_bound(x_ranges.begin(), x_ranges.end(), range.end, ends_before);
    return at != x_ranges.end() && at->contains(range);
  }

  void clear() noexcept { x_ranges.clear(); }
  const std::vector<MemoryRange>& ranges() const noexcept { return x_ranges; }

 private:
  static bool ends_before(const MemoryRange& range, uintptr_t address) noexcept {
    return range.end < address;
  }

  std::vector<MemoryRange> x_ranges;
};

/// The pages that hold these bytes. False: the range is empty or not addressable.
inline bool whole_pages(const void* address, size_t length, MemoryRange& range) noexcept {
  static const uintptr_t mask = uintptr_t(::sysconf(_SC_PAGESIZE)) - 1;
  const auto start = reinterpret_cast<uintptr_t>(address);
  if (length == 0 || start > UINTPTR_MAX - mask || length > UINTPTR_MAX - mask - start)
    return false;
  range = {start & ~mask, (start + length + mask) & ~mask};
  return true;
}

}  // namespace erdma::transport::verbs
