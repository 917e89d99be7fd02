#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/handles.h"
#include "transport/verbs/memory_range.h"
#include "util/intrusive_list.h"

namespace erdma::transport::verbs {

/// One memory region. It has users, or is idle and can be found, or neither: then it will be
/// destroyed.
struct CachedRegion : util::ListHook<CachedRegion> {
  MemoryRange range;
  ibv_mr* region = nullptr;
  int rights = 0;  ///< IBV_ACCESS_*
  uint32_t users = 0;
  bool listed = false;  ///< in the index: can be found
};

/// The regions that can be found and have no users, the least recently used first.
class IdleRegions {
 public:
  size_t size() const noexcept { return x_size; }
  void push_back(CachedRegion& region) noexcept {
    x_list.push_back(region);
    ++x_size;
  }
  CachedRegion* pop_front() noexcept {
    CachedRegion* const oldest = x_list.pop_front();
    if (oldest) --x_size;
    return oldest;
  }
  void erase(CachedRegion& region) noexcept {
    x_list.erase(region);
    --x_size;
  }

 private:
  util::IntrusiveList<CachedRegion> x_list;
  size_t x_size = 0;
};

/// Regions with the same rights that can be found by address. Invariant: no region contains
/// another. So starts and ends have the same order: if the last region that starts at or before a
/// range does not contain the range, none does.
class RegionIndex {
 public:
  CachedRegion* find(const MemoryRange& range) const noexcept;
  /// Moves regions that `added` contains into `superseded`. May throw; then nothing has changed.
  void insert(CachedRegion& added, std::vector<CachedRegion*>& superseded);
  void remove(CachedRegion& removed) noexcept;
  /// Removes overlapping regions, calling `removed` for each.
  template <typename Function>
  void remove_overlapping(const MemoryRange& range, Function&& removed) noexcept {
    const auto from = std::upper_bound(
        x_places.begin(), x_places.end(), range.start,
        [](uintptr_t start, const Place& place) { return start < place.range.end; });
    auto to = from;
    for (; to != x_places.end() && to->range.start < range.end; ++to) removed(*to->entry);
    x_places.erase(from, to);
  }

 private:
  struct Place {
    MemoryRange range;
    CachedRegion* entry;
  };
  std::vector<Place> x_places;
};

}  // namespace erdma::transport::verbs
