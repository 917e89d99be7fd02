#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <vector>

#include "fake/cma_calls.h"
#include "libcheck.h"
#include "transport/shm/bulk_in.h"
#include "transport/shm/bulk_out.h"

/// A bulk channel with both sides in one process, and messages to send through it.
namespace erdma::transport::shm {

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;
inline constexpr int kManyPolls = 2'000'000;

class SteppingClock final : public util::Clock {
 public:
  uint64_t now() const noexcept override { return x_now += 1000; }
  void pass(uint64_t nanoseconds) noexcept { x_now += nanoseconds; }

 private:
  mutable uint64_t x_now = 0;
};

struct Memory final : BulkMemory {
  int status = 0;
  int calls = 0;
  bool sender_left() const noexcept override { return left; }
  bool left = false;
  bool shares_back() const noexcept override { return both_ways; }
  bool streams_back() const noexcept override { return streams; }
  bool calls_are_fast() noexcept override { return ++measured, fast; }
  bool both_ways = false, streams = false, fast = false;
  unsigned measured = 0;  ///< questions whether calls are fast
  uint32_t affordable_slots() const noexcept override { return affordable ? slots : 0; }
  /// The gate of a shared region, with a number of permitted accesses.
  uint64_t revocations_seen() const noexcept override { return heard; }
  bool enter(uint64_t at_begin) noexcept override {
    return at_begin == heard && permitted-- > 0 && (inside = true);
  }
  void leave() noexcept override { inside = false; }
  void ask_for_help() noexcept override { ++asked; }
  int permitted = INT_MAX, asked = 0;
  uint64_t heard = 0;
  bool inside = false;
  bool affordable = false;        ///< false: CMA does all that it permits
  uint32_t slots = kBounceSlots;  ///< that are affordable, if any are
  size_t most = kBounceSlots;     ///< for which there is memory
  int busy = 0;                   ///< calls that are told to come again
  uint32_t backed = 0;
  int back_bounce(uint32_t count) noexcept override {
    ++calls;
    if (busy > 0) return --busy, -FI_EAGAIN;
    if (count > most) return -FI_ENOMEM;
    if (status == 0) backed = count;
    return status;
  }
};

/// Records each on_done(). `then` may do more.
struct Recorder final : Sink {
  std::map<uint64_t, std::vector<int>> done;
  std::vector<uint64_t> order;
  std::function<void(uint64_t, int)> then;
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_link_down(Link&, int) noexcept override {}
  void on_done(uint64_t token, int status) noexcept override {
    done[token].push_back(status);
    order.push_back(token);
    if (then) then(token, status);
  }
};

/// Random bytes by xorshift. Their number is the largest prime below 64 KiB.
inline const std::vector<unsigned char>& random_block(unsigned seed) {
  static std::map<unsigned, std::vector<unsigned char>> blocks;
  std::vector<unsigned char>& block = blocks[seed];
  uint64_t random = 0x9e3779b97f4a7c15u * (seed + uint64_t{1});
  while (block.size() < 65521) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    block.push_back((unsigned char)(random >> 32));
  }
  return block;
}

/// `length` bytes in up to four uneven, unaligned pieces of a block of their own.
struct Pieces {
  std::vector<unsigned char> block;
  iovec iov[kMaxIov];
  size_t count;

  Pieces(size_t length, size_t pieces, unsigned char fill)
      : block(length + 256, fill), count(pieces) {
    size_t at = 1 + pieces, left = length;
    for (size_t i = 0; i < pieces; ++i) {
      const size_t bytes = i + 1 == pieces ? left : left * (i + 1) / (pieces + 3);
      iov[i] = {block.data() + at, bytes};
      at += bytes + 13;
      left -= bytes;
    }
  }
  /// Fills the pieces with a block whose length no chunk or page divides, so that misplaced bytes
  /// differ from the right ones.
  void fill(unsigned seed) {
    const std::vector<unsigned char>& random = random_block(seed);
    size_t from = 0;
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0, bytes = 0; j < iov[i].iov_len; j += bytes) {
        bytes = std::min(random.size() - from, iov[i].iov_len - j);
        std::memcpy(static_cast<unsigned char*>(iov[i].iov_base) + j, random.data() + from, bytes);
        from = (from + bytes) % random.size();
      }
  }
  /// Returns all bytes, copied by memcpy(), as AddressSanitizer's memmove() copies byte by byte.
  std::vector<unsigned char> flat() const {
    size_t length = 0;
    for (size_t i = 0; i < count; ++i) length += iov[i].iov_len;
    std::vector<unsigned char> bytes(length);
    for (size_t i = 0, at = 0; i < count; at += iov[i++].iov_len)
      if (iov[i].iov_len > 0) std::memcpy(bytes.data() + at, iov[i].iov_base, iov[i].iov_len);
    return bytes;
  }
  size_t gaps_changed(unsigned char fill) const {
    size_t bad = 0, at = 0;
    for (size_t i = 0; i <= count; ++i) {
      auto* end = i < count ? static_cast<unsigned char*>(iov[i].iov_base) : &block.back() + 1;
      for (; block.data() + at < end; ++at) bad += block[at] != fill;
      if (i < count) at += iov[i].iov_len;
    }
    return bad;
  }
};

inline CmaPeer peer_with(Permission read, Permission write) {
  CmaPeer peer;
  peer.pid = getpid();
  peer.read.permission = read;
  peer.write.permission = write;
  return peer;
}

/// Which of the two processes may access the other. `chosen` permits both, and prefers bouncing.
enum class Ways { dual, read_only, write_only, bounce, chosen };
inline constexpr Ways kWays[] = {Ways::dual, Ways::read_only, Ways::write_only, Ways::bounce,
                                 Ways::chosen};
inline bool permits_reads(Ways ways) {
  return ways == Ways::dual || ways == Ways::read_only || ways == Ways::chosen;
}
inline bool permits_writes(Ways ways) {
  return ways == Ways::dual || ways == Ways::write_only || ways == Ways::chosen;
}
inline Options options_for(Ways ways) {
  Options options;
  options.paths = ways == Ways::chosen ? PathPolicy::copy : PathPolicy::measure;
  return options;
}

/// Both sides of one channel in one process.
struct Channel {
  explicit Channel(Ways ways, bool attached = true) : Channel(ways, attached, options_for(ways)) {}
  Channel(Ways ways, bool attached, const Options& options)
      : reader(peer_with(permits_reads(ways) ? Permission::allowed : Permission::denied,
                         Permission::denied)),
        writer(peer_with(Permission::denied,
                         permits_writes(ways) ? Permission::allowed : Permission::denied)),
        shared(
            mmap(nullptr, kBulkBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        in(shared, memory, calls, reader, options, in_core, in_counters, clock),
        out(calls, writer, out_core, out_counters) {
    memory.affordable = ways == Ways::chosen || ways == Ways::bounce;
    if (attached) out.attach(shared);
  }
  ~Channel() {
    for (const RemoteKey& remote_key : shared_keys) out.revoke(remote_key);
    munmap(shared, kBulkBytes);
  }

  BulkShared& page() { return shared_page(shared); }
  void run() {
    for (int i = 0; i < kManyPolls && in.active(); ++i) {
      in.poll(sink);
      out.poll();
    }
  }

  CoreSharing in_core, out_core;
  fake::CmaCalls calls;
  CmaPeer reader, writer;
  Counters in_counters, out_counters;
  SteppingClock clock;
  Memory memory;
  Recorder sink;
  void* shared;
  BulkIn in;
  BulkOut out;
  std::vector<RemoteKey> shared_keys;  ///< keys that the destructor revokes
};

/// A message and its memory at both ends.
struct Message {
  Pieces from, to;
  size_t length;
  uint64_t token;
  RemoteKey remote_key;

  Message(Channel& channel, size_t length_, uint64_t token_ = 7, size_t froms = 3, size_t tos = 2,
          uint64_t group = 0, bool timed = false)
      : from(length_, froms, 0x11), to(length_, tos, 0x22), length(length_), token(token_) {
    from.fill(unsigned(token));
    ck_assert_int_eq(channel.out.share(from.iov, from.count, length, remote_key, timed), 0);
    channel.shared_keys.push_back(remote_key);
    ck_assert_int_eq(channel.in.start(remote_key, to.iov, to.count, length, token, group), 0);
  }
  bool arrived() const { return from.flat() == to.flat() && to.gaps_changed(0x22) == 0; }
  /// Checks the bytes during on_done().
  void expect_at_done(Channel& channel, bool& whole) {
    channel.sink.then = [this, &whole](uint64_t, int status) { whole = status == 0 && arrived(); };
  }
};

/// Polls only the receiver, until its first transfer is to move through the slots.
inline void await_bounce(Channel& channel) {
  const SharedWord& state = channel.page().ticket[0].state;
  for (int i = 0; i < kManyPolls && unpack_state(state).mode != Mode::bounce; ++i)
    channel.in.poll(channel.sink);
  ck_assert(unpack_state(state).mode == Mode::bounce);
}

inline void assert_done_once(const Recorder& sink, uint64_t token, int status) {
  ck_assert_uint_eq(sink.done.count(token), 1);
  ck_assert_uint_eq(sink.done.at(token).size(), 1);
  ck_assert_int_eq(sink.done.at(token)[0], status);
}

}  // namespace erdma::transport::shm
