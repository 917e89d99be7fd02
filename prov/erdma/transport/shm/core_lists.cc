#include <algorithm>
#include <new>

#include "transport/shm/core.h"

/// Core's lists of channels and links that want something. A list that cannot grow for want of
/// memory costs the link, never the process.
namespace erdma::transport::shm {
namespace {

template <typename T>
bool append(std::vector<T>& list, T element) noexcept try {
  list.push_back(element);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace

void Core::break_link(ShmLink& link, const char* why, int status) noexcept {
  x_attention = true;
  if (link.in()) link.in()->stop();
  if (link.broken || !append(x_broken, &link)) return;
  link.broken = why;
  link.broken_status = status;
}

void Core::add_hot(InChannel& channel) noexcept {
  if (!append(x_hot, &channel)) break_link(channel.link(), "out of memory");
}

// The cold ring is looked at next, whether or not its bit is set.
void Core::remove_hot(InChannel& channel) noexcept {
  std::erase(x_hot, &channel);
  --x_granted;
  look_again(channel.connection()->place);
  grant_to_waiters();
}

void Core::attend_to(InChannel& channel, bool on) noexcept {
  if (!on)
    std::erase(x_hot, &channel);
  else if (channel.hot())
    add_hot(channel);
  else
    look_again(channel.connection()->place);
}

void Core::look_again(const ColdPlace& place) noexcept {
  for (ChunkRings& rings : x_chunks)
    if (rings.chunk == place.chunk) rings.again |= uint64_t(1) << place.index;
}

void Core::forget(InChannel& channel) noexcept {
  if (channel.granted()) --x_granted;
  if (channel.has_bounce()) --x_bounces;
  std::erase(x_hot, &channel);
  std::erase(x_waiters, &channel);
  std::erase(x_bulk_ins, &channel);
  const ColdPlace& place = channel.connection()->place;
  for (ChunkRings& rings : x_chunks)
    if (rings.chunk == place.chunk) rings.channels[place.index] = nullptr;
  grant_to_waiters();
}

void Core::add_bulk(InChannel& channel) noexcept {
  x_attention = true;
  if (std::find(x_bulk_ins.begin(), x_bulk_ins.end(), &channel) != x_bulk_ins.end()) return;
  if (!append(x_bulk_ins, &channel)) break_link(channel.link(), "out of memory");
}

void Core::add_bulk_out(ShmLink& link) noexcept {
  x_attention = true;
  if (!link.listed_bulk) link.listed_bulk = append(x_bulk_outs, &link);
}

void Core::add_starved(ShmLink& link) noexcept {
  if (!link.listed_starved) link.listed_starved = append(x_starved, &link);
}

void Core::add_switching(ShmLink& link) noexcept {
  x_attention = true;
  if (!link.listed_switching) link.listed_switching = append(x_switching, &link);
}

void Core::add_replying(ShmLink& link) noexcept {
  x_attention = true;
  if (!link.listed_replying) link.listed_replying = append(x_replying, &link);
}

void Core::defer_done(uint64_t token, int status) noexcept {
  x_attention = true;
  (void)append(x_deferred, DeferredDone{token, status});
}

}  // namespace erdma::transport::shm
