#include "transport/verbs/region_index.h"

namespace erdma::transport::verbs {

CachedRegion* RegionIndex::find(const MemoryRange& range) const noexcept {
  const auto after = std::upper_bound(
      x_places.begin(), x_places.end(), range.start,
      [](uintptr_t start, const Place& place) { return start < place.range.start; });
  if (after == x_places.begin()) return nullptr;
  const Place& place = *(after - 1);
  return place.range.end >= range.end ? place.entry : nullptr;
}

void RegionIndex::insert(CachedRegion& added, std::vector<CachedRegion*>& superseded) {
  const auto from = std::lower_bound(
      x_places.begin(), x_places.end(), added.range.start,
      [](const Place& place, uintptr_t start) { return place.range.start < start; });
  auto to = from;
  for (; to != x_places.end() && to->range.end <= added.range.end; ++to)
    superseded.push_back(to->entry);
  if (from == to) {
    x_places.insert(from, {added.range, &added});
  } else {
    *from = {added.range, &added};
    x_places.erase(from + 1, to);
  }
}

void RegionIndex::remove(CachedRegion& removed) noexcept {
  const auto at = std::lower_bound(
      x_places.begin(), x_places.end(), removed.range.start,
      [](const Place& place, uintptr_t start) { return place.range.start < start; });
  if (at != x_places.end() && at->entry == &removed) x_places.erase(at);
}

}  // namespace erdma::transport::verbs
