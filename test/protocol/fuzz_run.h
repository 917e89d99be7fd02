#pragma once

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>

#include "fake/live_bytes.h"
#include "protocol/fuzz_hostile.h"
#include "protocol/fuzz_world.h"
#include "util/clock.h"

/// Runs a victim, an honest peer and a hostile one. ERDMA_FUZZ_STEPS sets the number of hostile
/// steps (the default takes some seconds), ERDMA_FUZZ_SEED the random seed. The default seed is the
/// time, and is printed.
namespace erdma::fuzz {

inline uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 0) : otherwise;
}
inline uint64_t seed() {
  static const uint64_t chosen = number_from("ERDMA_FUZZ_SEED", uint64_t(time(nullptr)));
  return chosen;
}

/// Most bytes that one peer can make this process keep: unexpected messages (the budget and twice
/// the overshoot), answers, results and requests. It follows from the constants of protocol/, with
/// a margin for the test.
inline constexpr size_t kMostBytes = size_t(200) << 20;
inline constexpr size_t kEpisode = 1500;

/// The transports of the three endpoints, and the function that ends the hostile one.
struct Medium {
  transport::Transport* transports[3] = {};
  util::SocketAddress names[3];
  std::function<void()> end_hostile;  ///< the victim hears of it in a later poll()
  std::function<void(transport::Link&, Random&)> meddle;
  std::function<bool()> work_is_bounded = [] { return true; };
};

struct World {
  World(Medium& medium_, Random& random_)
      : medium(medium_),
        random(random_),
        victim((book.names.assign(medium.names, medium.names + 3), *medium.transports[kVictim]),
               book, medium.names[kVictim]),
        honest(*medium.transports[kHonest], book, medium.names[kHonest]),
        hostile(*medium.transports[kHostile], medium.names[kVictim], random) {
    hostile.meddle = medium.meddle;
    share(readable, 0x101, FI_REMOTE_READ, true);
    share(writable, 0x102, FI_REMOTE_WRITE, true);
    share(both, 0x103, FI_REMOTE_READ | FI_REMOTE_WRITE, true);
    share(common, kCommonKey, FI_REMOTE_READ | FI_REMOTE_WRITE, false);
    const auto bytes = plain(readable.length, 1);
    std::copy(bytes.begin(), bytes.end(), readable.data());
    std::copy(bytes.begin(), bytes.end(), both.data());
    std::copy(bytes.begin(), bytes.end(), common.data());
    before = readable.all;
    before_common = common.all;
  }

  void share(Guarded& memory, uint64_t key, uint64_t access, bool to_hostile) {
    regions.push_back(std::make_unique<Region>(memory.data(), memory.length, access));
    victim.regions.by_key[key] = regions.back().get();
    if (to_hostile) hostile.told.push_back({uint64_t(memory.data()), key, memory.length});
  }

  void progress() {
    victim.engine.progress();
    honest.engine.progress();
    victim.collect();
    honest.collect();
  }

  /// Posts an operation of the victim with the hostile peer.
  void deal() {
    const size_t length = random.of<size_t>({0, 1, 8, 64, 65, 500, 3000, 20000});
    const wire::Segment segment{0x10000 + random.below(256), random.below(4), length};
    const uint64_t tag = uint64_t(1) << 40 | random.below(4);
    if (victim.operations.size() > 200) return;
    switch (random.below(8)) {
      case 0:
      case 1:
        return victim.send(kHostile, plain(length, random.below(99)), tag, random.one_in(3));
      case 2:
        return victim.receive(random.one_in(2) ? kHostile : UINT64_MAX, length, tag,
                              random.below(4), false, nullptr);
      case 3:
        return victim.receive(UINT64_MAX, 1000 + length, tag, 3, true, nullptr);
      case 4:
        return victim.transfer(wire::Op::read, kHostile, &segment, 1, length, nullptr);
      case 5:
        return victim.transfer(wire::Op::write, kHostile, &segment, 1, length, nullptr);
      default: {
        const size_t count = random.of<size_t>({1, 1, 3, 200});
        const auto flags =
            uint8_t(random.of<int>({0, wire::kFetch, wire::kFetch, wire::kFetch | wire::kCompare}));
        return victim.atomic(kHostile, segment, count, flags, flags == wire::kFetch);
      }
    }
  }

  /// Posts an operation with the honest peer, which must succeed.
  void converse() {
    if (victim.pending_with_honest() + honest.pending_with_honest() > 16) return;
    const size_t length = random.of<size_t>({0, 1, 8, 100, 3000, 5000});
    const auto bytes = plain(length, random.below(99));
    const uint64_t tag = ++tags;
    const size_t offset = random.below(1000);
    const wire::Segment segment{uint64_t(common.data()) + offset, kCommonKey, length};
    const std::vector<char> there(common.data() + offset, common.data() + offset + length);
    switch (random.below(4)) {
      case 0:
        victim.receive(kHonest, length, tag, 0, false, &bytes);
        return honest_send(tag, bytes);
      case 1:
        honest.receive(kVictim, length, tag, 0, false, &bytes);
        return victim.send(kHonest, bytes, tag, random.one_in(3));
      case 2:
        return honest.transfer(wire::Op::read, kVictim, &segment, 1, length, &there);
      default:  // writes the present bytes, so that reads have a known result
        return honest.transfer(wire::Op::write, kVictim, &segment, 1, length, &there);
    }
  }
  void honest_send(uint64_t tag, const std::vector<char>& bytes) {
    Operation& op = honest.make(true, bytes.size());
    std::copy(bytes.begin(), bytes.end(), op.memory.data());
    op.expected = bytes;
    const iovec iov{op.memory.data(), bytes.size()};
    auto args = honest.local(kVictim, iov, tag, op);
    args.until_delivered = random.one_in(3);
    honest.begun(op, honest.engine.post_send(args));
  }

  template <typename Condition>
  void until(Condition condition, const char* what) {
    const util::SystemClock clock;
    const uint64_t end = clock.now() + 30'000'000'000ull;  // time limit of a hang
    while (!condition()) {
      progress();
      hostile.poll();
      if (clock.now() > end) ck_abort_msg("%s: %s", what, victim.first_pending());
    }
  }

  void run(size_t steps) {
    const size_t before_bytes = fake::live_bytes();
    bool polls = true;
    for (size_t i = 0; i < steps; ++i) {
      if (random.one_in(64)) polls = !random.one_in(3);  // for a while, the peer takes no packets
      if (random.one_in(4)) deal();
      if (random.one_in(8)) converse();
      hostile.act();
      if (polls) hostile.poll();
      progress();
      if (i % 64 == 0) {
        const size_t now = fake::live_bytes();
        ck_assert_msg(now < before_bytes + kMostBytes, "%zu bytes are kept", now - before_bytes);
        ck_assert_msg(medium.work_is_bounded(), "a packet of few bytes costs too much");
      }
    }
  }

  /// Sends requests that only cost answers, before the hostile peer does anything more.
  void flood(wire::Op op, size_t packets) {
    constexpr size_t kMostAnswerBytes = size_t(48) << 20;
    const size_t before_bytes = fake::live_bytes();
    for (size_t i = 0; i < packets; ++i) {
      hostile.flood(op);
      if (i % 64 != 0) continue;
      if (i % 1024 == 0) converse();
      progress();
      const size_t now = fake::live_bytes();
      if (now >= before_bytes + kMostAnswerBytes) ck_abort_msg("%zu bytes", now - before_bytes);
    }
  }

  void end() {
    medium.end_hostile();
    until([&] { return victim.pending_with_honest() + honest.pending_with_honest() == 0; },
          "an operation with the honest peer does not end");
    victim.cancel_receives();
    until(
        [&] {
          victim.cancel_receives();
          return victim.pending() == 0;
        },
        "an operation with a peer that is gone does not end");
    until([&] { return region_users() == 0; }, "a peer that is gone uses a region");
    ck_assert_msg(!hostile.holds_canary(), "the hostile peer has what it was not given");
    ck_assert_msg(readable.all == before, "read-only memory was changed");
    ck_assert_msg(common.all == before_common, "memory of the honest peer's was changed");
    ck_assert(writable.intact() && both.intact());
  }
  /// Counts the users of all regions except the honest peer's, which keeps its grant.
  size_t region_users() const {
    size_t users = 0;
    for (size_t i = 0; i + 1 < regions.size(); ++i) users += regions[i]->users;
    return users;
  }

  static constexpr uint64_t kCommonKey = 0x5eaf'00d5'1122'3344;
  Medium& medium;
  Random& random;
  Guarded readable{4096}, writable{4096}, both{4096}, common{1 << 14};
  std::vector<char> before, before_common;
  std::vector<std::unique_ptr<Region>> regions;
  Book book;
  Endpoint victim, honest;
  HostilePeer hostile;
  uint64_t tags = 0;
};

/// Runs one episode of packets that each want an answer. If all answers were kept, they would
/// exceed the limit.
template <typename MakeMedium>
void flood_over(size_t packets, MakeMedium make) {
  for (const wire::Op op : {wire::Op::revoke, wire::Op::write}) {
    Random random(seed());
    make(random, [&](Medium& medium) {
      World world(medium, random);
      world.flood(op, packets);
      world.end();
    });
  }
}

/// Runs episodes with new endpoints until all steps are done.
template <typename MakeMedium>
void fuzz_over(const char* name, uint64_t steps, MakeMedium make) {
  steps = number_from("ERDMA_FUZZ_STEPS", steps);
  for (uint64_t done = 0, episode = 0; done < steps; done += kEpisode, ++episode) {
    Random random(seed() + episode);
    std::printf("%s: ERDMA_FUZZ_SEED=%llu\r", name, (unsigned long long)(seed() + episode));
    std::fflush(stdout);
    make(random, [&](Medium& medium) {
      World world(medium, random);
      world.run(size_t(std::min<uint64_t>(kEpisode, steps - done)));
      world.end();
    });
  }
  std::printf("\n");
}

}  // namespace erdma::fuzz
