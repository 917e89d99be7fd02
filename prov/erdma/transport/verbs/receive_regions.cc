#include "transport/verbs/receive_regions.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

namespace erdma::transport::verbs {

std::byte* ReceiveRegions::Part::bytes() const noexcept {
  return x_region->memory.bytes() + x_index * x_region->part_bytes;
}

uint32_t ReceiveRegions::Part::lkey() const noexcept {
  return x_region->memory.lkey();
}

void ReceiveRegions::Part::reset() noexcept {
  if (x_region) x_owner->give_back(*x_region, x_index);
  x_region = nullptr;
}

ReceiveRegions::~ReceiveRegions() {
  // In a child the regions are the parent's, whose threads may have been changing the list.
  if (x_epoch != util::process_epoch()) return;
  while (Region* region = x_regions.pop_front()) delete region;
}

int ReceiveRegions::take(size_t bytes, Part& part) noexcept {
  unsigned parts = 0;
  {
    const std::lock_guard guard(x_mutex);
    if (Region* const region = find(bytes, parts)) {
      hand_out(*region, part);
      return 0;
    }
  }
  // Without the mutex, as the device may take long, and the polling thread gives parts back.
  const unsigned fit = unsigned(std::clamp<size_t>(kMostBytes / bytes, 1, kMostParts));
  parts = std::clamp(parts, 1u, fit);
  Region* made = nullptr;
  int error = make(bytes, parts, made);
  if (error && parts > 1) error = make(bytes, 1, made);
  if (error) {
    tell_of_locked_memory(x_device, bytes, "receives", error);
    return -error;
  }
  const std::lock_guard guard(x_mutex);
  x_regions.push_back(*made);
  hand_out(*made, part);
  return 0;
}

/// A region that has a free part of this size, or null. `parts`: how many of this size there are.
ReceiveRegions::Region* ReceiveRegions::find(size_t bytes, unsigned& parts) noexcept {
  Region* region = nullptr;
  for (Region* each = x_regions.front(); each; each = x_regions.next(*each)) {
    if (each->part_bytes != bytes) continue;
    parts += each->parts;
    if (!each->full()) region = each;
  }
  return region;
}

void ReceiveRegions::hand_out(Region& region, Part& part) noexcept {
  part.x_owner = this;
  part.x_region = &region;
  part.x_index = unsigned(std::countr_one(region.used));
  region.used |= 1ull << part.x_index;
}

/// 0 or an errno.
int ReceiveRegions::make(size_t bytes, unsigned parts, Region*& region) const noexcept {
  auto* const made = new (std::nothrow) Region;
  if (!made) return ENOMEM;
  if (const int error = made->memory.make(x_device, parts * bytes, OwnUse::receives)) {
    delete made;
    return error;
  }
  made->part_bytes = bytes;
  made->parts = parts;
  region = made;
  return 0;
}

void ReceiveRegions::give_back(Region& region, unsigned index) noexcept {
  if (x_epoch != util::process_epoch()) return;  // the parent's, whose threads may hold the mutex
  {
    const std::lock_guard guard(x_mutex);
    region.used &= ~(1ull << index);
    if (region.used) return;
    util::IntrusiveList<Region>::erase(region);
  }
  delete &region;
}

}  // namespace erdma::transport::verbs
