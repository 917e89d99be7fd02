#include "util/private_fds.h"

#include <fcntl.h>
#include <sys/socket.h>
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

struct Chunk {
  std::atomic<uint64_t> words[kWords] = {};
};

Chunk g_first;
std::atomic<Chunk*> g_chunks[kChunks] = {&g_first};

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

std::atomic<uint64_t>& word_of(Chunk& chunk, int fd) noexcept {
  return chunk.words[size_t(fd) % kPerChunk / 64];
}
uint64_t bit_of(int fd) noexcept {
  return uint64_t(1) << (fd % 64);
}

int open_nowhere() noexcept {
  return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/// Replaces the descriptor, which need not be open, by a copy of `plug`. `plug` < 0: the process
/// had no free descriptor for a plug yet.
void plug_one(int fd, int& plug) noexcept {
  if (plug < 0) {  // all descriptor numbers are in use: free one
    ::close(fd);
    plug = open_nowhere();
  }
  if (plug >= 0 && plug != fd) (void)::dup3(plug, fd, O_CLOEXEC);
}

}  // namespace

void mark_private(int fd) noexcept {
  if (Chunk* const chunk = chunk_of(fd, true))
    word_of(*chunk, fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void unmark_private(int fd) noexcept {
  if (Chunk* const chunk = chunk_of(fd, false))
    word_of(*chunk, fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

// The marks stay set: owners in the child still use these numbers, and a child of the child must
// plug them again.
void plug_private_fds() noexcept {
  const int own = open_nowhere();
  int plug = own;
  for (size_t i = 0; i < kChunks; ++i) {
    Chunk* const chunk = g_chunks[i].load(std::memory_order_relaxed);
    for (size_t word = 0; chunk && word < kWords; ++word)
      for (uint64_t left = chunk->words[word].load(std::memory_order_relaxed); left;
           left &= left - 1)
        plug_one(int(i * kPerChunk + word * 64) + std::countr_zero(left), plug);
  }
  if (own >= 0) ::close(own);
}

}  // namespace erdma::util
