#include "transport/verbs/quarantines.h"

#include <algorithm>

namespace erdma::transport::verbs {

bool Quarantines::overlap(const MemoryRange& range) const noexcept {
  return std::any_of(x_list.begin(), x_list.end(),
                     [&](const Quarantine& each) { return each.range.overlaps(range); });
}

bool Quarantines::add(const MemoryRange& range, uint64_t now) noexcept {
  const bool first = x_list.empty();
  if (first) x_next_tick = now + x_tick_ns;
  for (Quarantine& old : x_list) {
    if (!old.range.contains(range)) continue;
    old.ticks = 0;
    return first;
  }
  if (x_list.size() < kMost)
    x_list.push_back({range});
  else
    x_list.back() = {kAllAddresses};
  return first;
}

void Quarantines::age(uint64_t now) noexcept {
  if (x_list.empty() || now < x_next_tick) return;
  x_next_tick = now + x_tick_ns;
  std::erase_if(x_list, [](Quarantine& each) { return ++each.ticks > kTicks; });
}

}  // namespace erdma::transport::verbs
