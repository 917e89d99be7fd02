#include "util/private_fds.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>

namespace erdma::util {
namespace {

constexpr size_t kWords = 1024;
constexpr size_t kChunks = 1024;
constexpr size_t kPerChunk = kWords * 64;

/// The bits of marked descriptors, and of those that a plug replaced when this process was forked.
struct Chunk {
  std::atomic<uint64_t> words[kWords] = {};
  std::atomic<uint64_t> plugged[kWords] = {};
};

Chunk g_first;
std::atomic<Chunk*> g_chunks[kChunks] = {&g_first};
/// The plug that this process got for its parent's descriptors.
dev_t g_plug_device = 0;
ino_t g_plug_inode = 0;

/// The chunk that has the bit of `fd`. Null: no descriptor of that chunk was ever marked or, with
/// `make`, memory is exhausted.
Chunk* chunk_of(int fd, bool make) noexcept {
  if (fd < 0 || size_t(fd) >= kChunks * kPerChunk) return nullptr;
  std::atomic<Chunk*>& place = g_chunks[size_t(fd) / kPerChunk];
  Chunk* chunk = place.load(std::memory_order_acquire);
  if (chunk || !make) return chunk;
  auto* const made = new (std::nothrow) Chunk;
  if (made && place.compare_exchange_strong(chunk, made)) return made;
  delete made;
  return chunk;
}

size_t word_of(int fd) noexcept {
  return size_t(fd) % kPerChunk / 64;
}
uint64_t bit_of(int fd) noexcept {
  return uint64_t(1) << (fd % 64);
}

int open_nowhere() noexcept {
  return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

bool is_plug(int fd) noexcept {
  struct stat status {};
  return g_plug_inode && ::fstat(fd, &status) == 0 && status.st_ino == g_plug_inode &&
         status.st_dev == g_plug_device;
}

void remember_plug(int plug) noexcept {
  struct stat status {};
  const bool known = plug >= 0 && ::fstat(plug, &status) == 0;
  g_plug_inode = known ? status.st_ino : 0;
  g_plug_device = known ? status.st_dev : 0;
}

/// Replaces the descriptor, which need not be open, by a copy of `plug`. `plug` < 0: the process
/// had no free descriptor for a plug yet. A number that RLIMIT_NOFILE no longer permits can have no
/// copy, so it is closed; the kernel does not give it to another descriptor.
void plug_one(int fd, int& plug) noexcept {
  if (plug < 0) {  // all descriptor numbers are in use: free one
    ::close(fd);
    plug = open_nowhere();
  }
  if (plug >= 0 && plug != fd && ::dup3(plug, fd, O_CLOEXEC) < 0) ::close(fd);
}

}  // namespace

void mark_private(int fd) noexcept {
  Chunk* const chunk = chunk_of(fd, true);
  if (!chunk) return;
  chunk->plugged[word_of(fd)].fetch_and(~bit_of(fd), std::memory_order_relaxed);
  chunk->words[word_of(fd)].fetch_or(bit_of(fd), std::memory_order_relaxed);
}

bool is_private(int fd) noexcept {
  const Chunk* const chunk = chunk_of(fd, false);
  return chunk && chunk->words[word_of(fd)].load(std::memory_order_relaxed) & bit_of(fd);
}

void unmark_private(int fd) noexcept {
  if (Chunk* const chunk = chunk_of(fd, false))
    chunk->words[word_of(fd)].fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

// The marks stay set: owners in the child still use these numbers, and a child of the child must
// plug them again. But the child may have closed all that it inherited, and have got the number for
// a descriptor of its own since; then the mark ends.
void plug_private_fds() noexcept {
  const int own = open_nowhere();
  int plug = own;
  for (size_t i = 0; i < kChunks; ++i) {
    Chunk* const chunk = g_chunks[i].load(std::memory_order_relaxed);
    for (size_t word = 0; chunk && word < kWords; ++word)
      for (uint64_t left = chunk->words[word].load(std::memory_order_relaxed); left;
           left &= left - 1) {
        const int fd = int(i * kPerChunk + word * 64) + std::countr_zero(left);
        if (chunk->plugged[word].load(std::memory_order_relaxed) & bit_of(fd) && !is_plug(fd)) {
          unmark_private(fd);
          continue;
        }
        plug_one(fd, plug);
        chunk->plugged[word].fetch_or(bit_of(fd), std::memory_order_relaxed);
      }
  }
  remember_plug(plug);
  if (own >= 0) ::close(own);
}

}  // namespace erdma::util
