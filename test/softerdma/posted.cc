#include "softerdma/posted.h"

#include <sched.h>

#include <cstring>

#include "softerdma/peer.h"

namespace softerdma {
namespace {

uint64_t next_random(PostedShared& queue) noexcept {
  uint64_t x = queue.random != 0 ? queue.random : 0x9e3779b97f4a7c15;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return queue.random = x;
}

/// Makes the oldest `most` stores arrive, of one GPU or of any. Stores to freed memory have no
/// effect. Caller holds the lock.
void land(PeerProcess& target, PostedShared& queue, bool any, uint32_t gpu,
          uint32_t most) noexcept {
  uint32_t kept = 0, landed = 0;
  for (uint32_t i = 0; i < queue.count; ++i) {
    const PostedShared::Store store = queue.stores[i];
    if (landed < most && (any || store.gpu == gpu)) {
      ++landed;
      (void)target.place(queue.data + store.at, store.address, store.length);
    } else {
      queue.stores[kept++] = store;
    }
  }
  queue.count = kept;
  if (kept == 0) queue.bytes = 0;
}

}  // namespace

WordLock::WordLock(Fabric& fabric, std::atomic<uint32_t>& word) noexcept : x_word(word) {
  uint32_t mine = fabric.slot() + 1;
  for (unsigned tries = 1;; ++tries) {
    uint32_t holder = 0;
    if (x_word.compare_exchange_weak(holder, mine)) return;
    if (tries % 1024 == 0 && holder != 0 && holder != mine && !fabric.alive(holder - 1) &&
        x_word.compare_exchange_strong(holder, mine)) {
      return;
    }
    if (tries % 64 == 0) sched_yield();
  }
}

int post_store(Fabric& fabric, PeerProcess& target, PostedShared& queue, uint32_t gpu,
               uint64_t chance, const iovec* iov, size_t count, uint64_t address) noexcept {
  WordLock lock(fabric, queue.lock);
  for (size_t i = 0; i < count; ++i) {
    const size_t length = iov[i].iov_len;
    if (length == 0) continue;
    const bool fits = length <= PostedShared::kBytes - queue.bytes;
    if (queue.count == PostedShared::kStores || !fits)
      land(target, queue, true, 0, PostedShared::kStores);
    if (length > PostedShared::kBytes) {
      if (int error = target.place(iov[i].iov_base, address, length); error != 0) return error;
    } else {
      std::memcpy(queue.data + queue.bytes, iov[i].iov_base, length);
      queue.stores[queue.count++] = {address, static_cast<uint32_t>(length), gpu, queue.bytes};
      queue.bytes += length;
    }
    address += length;
  }
  if (chance > 1 && next_random(queue) % chance == 0)
    land(target, queue, true, 0, static_cast<uint32_t>(next_random(queue) % (queue.count + 1)));
  return 0;
}

void arrive(Fabric& fabric, PeerProcess& target, PostedShared& queue, uint32_t gpu) noexcept {
  WordLock lock(fabric, queue.lock);
  land(target, queue, false, gpu, PostedShared::kStores);
}

void arrive_all(Fabric& fabric, PeerProcess& target, PostedShared& queue) noexcept {
  WordLock lock(fabric, queue.lock);
  land(target, queue, true, 0, PostedShared::kStores);
}

}  // namespace softerdma
