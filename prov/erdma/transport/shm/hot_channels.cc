#include "transport/shm/hot_channels.h"

#include <algorithm>
#include <new>

#include "util/left_over.h"

namespace erdma::transport::shm {
namespace {

/// A hot peer gives up its ring once this many entries came from others since its last.
constexpr uint64_t kIdleEntries = 1024;

}  // namespace

HotChannels::~HotChannels() {
  util::expect_none_left("hot ring", x_granted);
}

bool HotChannels::anything_to_do() const noexcept {
  return std::ranges::any_of(
      x_polled, [](InChannel* channel) { return channel->ready() && !channel->parked(); });
}

void HotChannels::promote(InChannel& channel) noexcept try {
  if (channel.granted()) return;
  if (x_granted < x_most) return grant(channel);
  if (std::ranges::find(x_waiting, &channel) != x_waiting.end()) return;
  InChannel* idlest = nullptr;
  for (InChannel* hot : x_polled)
    if (!hot->demoting() && (!idlest || hot->last_active() < idlest->last_active())) idlest = hot;
  if (!idlest || x_entries - idlest->last_active() < kIdleEntries) return;
  idlest->ask_to_demote();
  if (idlest->demoting()) x_waiting.push_back(&channel);
} catch (const std::bad_alloc&) {
  // It goes without: the ring that comes free is granted to whoever sends a lot then.
}

void HotChannels::grant(InChannel& channel) noexcept {
  if (channel.grant_hot())
    channel.put_off_promotion();
  else
    ++x_granted;
}

bool HotChannels::add(InChannel& channel) noexcept try {
  x_polled.push_back(&channel);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void HotChannels::give_back() noexcept {
  --x_granted;
  while (!x_waiting.empty() && x_granted < x_most) {
    InChannel& channel = *x_waiting.front();
    x_waiting.erase(x_waiting.begin());
    if (!channel.granted()) grant(channel);
  }
}

void HotChannels::forget(InChannel& channel) noexcept {
  remove(channel);
  std::erase(x_waiting, &channel);
  if (channel.granted()) give_back();
}

}  // namespace erdma::transport::shm
