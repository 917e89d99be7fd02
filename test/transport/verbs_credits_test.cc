#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libcheck.h"
#include "transport/verbs/credits.h"

/// Explores every state of the two sides of one connection.
namespace erdma::transport::verbs {
namespace {

struct Flying {
  uint16_t credits;
  bool is_credit;
};

struct Half {
  Credits credits;
  uint32_t window = 0;
  uint32_t batch = 1;
  uint32_t unposted = 0;        ///< receives consumed and not yet posted again
  std::deque<Flying> arriving;  ///< packets that the other side sent
};

struct World {
  Half halves[2];
};

std::string key_of(const World& world) {
  std::string key;
  for (const Half& half : world.halves) {
    Credits copy = half.credits;
    key.append(reinterpret_cast<const char*>(&copy), sizeof(copy));
    key += char('0' + half.unposted);
    for (const Flying& packet : half.arriving) {
      key += char('0' + packet.credits);
      key += packet.is_credit ? 'c' : 'p';
    }
    key += '|';
  }
  return key;
}

World start(uint32_t window_a, uint32_t window_b) {
  World world;
  std::memset(static_cast<void*>(&world.halves[0].credits), 0, sizeof(Credits));
  std::memset(static_cast<void*>(&world.halves[1].credits), 0, sizeof(Credits));
  const uint32_t windows[] = {window_a, window_b};
  for (int i = 0; i < 2; ++i) {
    world.halves[i].window = windows[i];
    world.halves[i].batch = std::max(windows[i] / 4, 1u);  // as in ReceiveQueue
    world.halves[i].credits.start(windows[1 - i], windows[i]);
  }
  return world;
}

void send(World& world, int from, bool is_credit) {
  Half& sender = world.halves[from];
  Half& receiver = world.halves[1 - from];
  receiver.arriving.push_back({sender.credits.consume(), is_credit});
  // Each packet under way, and each whose receive was not posted again, needs a receive of its own.
  ck_assert_uint_le(receiver.arriving.size() + receiver.unposted, receiver.window);
}

void deliver(World& world, int to) {
  Half& half = world.halves[to];
  const Flying packet = half.arriving.front();
  half.arriving.pop_front();
  ck_assert(half.credits.receive(packet.credits));
  ++half.unposted;
}

/// Receives may be posted some time after the batch is complete, as packets may leave in between.
bool may_repost(const Half& half) {
  return half.unposted >= half.batch;
}
void repost(Half& half) {
  half.credits.repost(std::exchange(half.unposted, 0));
}

bool returns_credits(const Half& half) {
  return half.credits.must_return() && half.credits.may_send_credit();
}

/// Without packets to send, both sides come to rest. After that, both may send and stream again.
void comes_to_rest(World world) {
  unsigned steps = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (int i = 0; i < 2; ++i) {
      if (!world.halves[i].arriving.empty()) deliver(world, i), moved = true;
      if (may_repost(world.halves[i])) repost(world.halves[i]), moved = true;
      if (returns_credits(world.halves[i])) send(world, i, true), moved = true;
    }
    ck_assert_uint_lt(++steps, 200);
  }
  for (const Half& half : world.halves) {
    ck_assert(half.credits.may_send());
    ck_assert(half.credits.plenty());
  }
}

void explore(uint32_t window_a, uint32_t window_b) {
  std::vector<World> open{start(window_a, window_b)};
  std::unordered_set<std::string> seen{key_of(open[0])};
  while (!open.empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    comes_to_rest(world);
    for (int step = 0; step < 8; ++step) {
      const int side = step & 1;
      World next = world;
      if (step < 2 && next.halves[side].credits.may_send())
        send(next, side, false);
      else if (step >= 2 && step < 4 && returns_credits(next.halves[side]))
        send(next, side, true);
      else if (step >= 4 && step < 6 && !next.halves[side].arriving.empty())
        deliver(next, side);
      else if (step >= 6 && may_repost(next.halves[side]))
        repost(next.halves[side]);
      else
        continue;
      if (seen.insert(key_of(next)).second) open.push_back(std::move(next));
    }
  }
  ck_assert_uint_gt(seen.size(), 100);
}

constexpr uint32_t kWindows[][2] = {{4, 4}, {4, 5}, {5, 5}, {4, 6}, {5, 6}, {4, 8}, {6, 6}};

TEST_CASE(.timeout = 120);

TEST(no_state_of_small_windows_overruns_or_blocks, std::size(kWindows)) {
  explore(kWindows[_i][0], kWindows[_i][1]);
}

TEST(a_grown_window_returns_its_credits_at_once) {
  Credits credits;
  credits.start(8, 8);
  ck_assert(!credits.must_return());
  credits.grow(56);
  ck_assert(credits.must_return());
  ck_assert_uint_eq(credits.consume(), 56);
  ck_assert(!credits.must_return());
  credits.shrink(8);
  ck_assert_uint_eq(credits.window(), 56);
}

TEST(a_peer_that_claims_too_many_receives_is_found_out) {
  Credits credits;
  credits.start(8, 8);
  bool believed = true;
  for (int i = 0; believed && i < 10; ++i) believed = credits.receive(UINT16_MAX);
  ck_assert(!believed);
}

TEST(credits_of_a_packet_that_did_not_leave_are_kept) {
  Credits credits;
  credits.start(8, 8);
  credits.repost(3);
  const uint16_t carried = credits.consume();
  ck_assert_uint_eq(carried, 3);
  credits.unconsume(carried);
  ck_assert_uint_eq(credits.available(), 8);
  ck_assert_uint_eq(credits.to_return(), 3);
}

}  // namespace

}  // namespace erdma::transport::verbs
