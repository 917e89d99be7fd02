#include "transport/shm/fragment_timer.h"

#include <cstring>

namespace erdma::transport::shm {

bool FragmentTimer::prefers_fragments(const void* link, size_t length, bool alone) noexcept {
  const FragmentChoice::Way way = x_choice.choose(length);
  const bool busy = x_link && x_remote_key.size;  // a rendezvous with another peer, as a rule
  if (busy) return way.fragments;
  x_link = way.timed && (way.fragments || alone) ? link : nullptr;
  if (!x_link) return way.fragments;
  x_fragments = way.fragments;
  x_length = length;
  x_written = 0;
  x_remote_key.size = 0;
  x_began = x_clock.now();
  return way.fragments;
}

// The receiver copies a fragment while the next is written. So the message is there when as much
// time has passed as one fragment more would take to be written.
void FragmentTimer::add(size_t length) noexcept {
  x_written += length;
  if (!x_fragments || x_length - x_written > length) return;  // not the last but one
  const uint64_t took = x_clock.now() - x_began;
  x_choice.record(x_length, true, took * (x_length + length) / x_written);
  x_link = nullptr;
}

void FragmentTimer::shared(const void* link, size_t length, const RemoteKey& remote_key) noexcept {
  if (x_link != link || x_remote_key.size) return;
  if (x_fragments || x_length != length)
    x_link = nullptr;
  else
    x_remote_key = remote_key;
}

void FragmentTimer::end(const RemoteKey& remote_key) noexcept {
  if (x_remote_key.size != remote_key.size ||
      std::memcmp(x_remote_key.bytes, remote_key.bytes, remote_key.size) != 0)
    return;
  x_choice.record(x_length, false, x_clock.now() - x_began);
  x_link = nullptr;
}

}  // namespace erdma::transport::shm
