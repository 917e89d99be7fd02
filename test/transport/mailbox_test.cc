#include "transport/mailbox.h"

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "libcheck.h"

/// Tests that no message is lost, that the messages of each sender stay in order, and that the bell
/// rings only for a sleeping receiver.
namespace erdma::transport {
namespace {

struct CountingBell {
  void ring() const noexcept { ++rings; }
  mutable std::atomic<int> rings = 0;
};

TEST(a_message_rings_once_for_a_taker_that_is_armed) {
  const CountingBell bell;
  Mailbox<int, CountingBell> box(bell);
  ck_assert(!box.pending());
  box.post(1);
  ck_assert(box.pending());
  ck_assert_int_eq(bell.rings, 0);
  ck_assert(!box.arm());  // a message is waiting
  box.disarm();
  ck_assert_int_eq(int(box.take().size()), 1);
  ck_assert(!box.pending());
  ck_assert(box.arm());
  box.post(2);
  box.post(3);
  ck_assert_int_eq(bell.rings, 1);
  const std::vector<int> both = box.take();
  ck_assert(both == std::vector<int>({2, 3}));
  box.post(4);
  ck_assert_int_eq(bell.rings, 1);
}

TEST(a_taker_that_no_longer_sleeps_is_not_rung_for) {
  const CountingBell bell;
  Mailbox<int, CountingBell> box(bell);
  ck_assert(box.arm());
  box.disarm();
  box.post(1);
  ck_assert_int_eq(bell.rings, 0);
}

TEST(questions_are_one_until_somebody_takes_them) {
  const CountingBell bell;
  Mailbox<int, CountingBell> box(bell);
  ck_assert(!box.take_question());
  ck_assert(box.arm());
  box.ask();
  box.ask();
  ck_assert_int_eq(bell.rings, 1);
  ck_assert(box.pending());
  ck_assert_int_eq(box.read([](int) {}), 0);
  ck_assert(!box.pending());
  ck_assert(box.take_question());
  ck_assert(!box.take_question());
}

TEST(what_is_owned_by_a_message_is_handed_on) {
  const CountingBell bell;
  Mailbox<std::unique_ptr<int>, CountingBell> box(bell);
  ck_assert_int_eq(box.try_post(std::make_unique<int>(7)), 0);
  const auto taken = box.take();
  ck_assert_int_eq(*taken.at(0), 7);
}

TEST(a_message_that_lacks_memory_stays_with_those_behind_it) {
  const CountingBell bell;
  Mailbox<int, CountingBell> box(bell);
  for (const int message : {1, 2, 3}) box.post(message);
  std::vector<int> seen;
  const auto handle = [&](const int& message) {
    seen.push_back(message);
    if (message == 2 && seen.size() == 2) throw std::bad_alloc();
  };
  ck_assert_int_eq(box.read(handle), 1);
  ck_assert(box.pending());
  ck_assert(!box.arm());
  box.post(4);
  ck_assert_int_eq(box.read(handle), 3);
  ck_assert(seen == std::vector<int>({1, 2, 2, 3, 4}));
  ck_assert(!box.pending());
  ck_assert_int_eq(box.read(handle), 0);
}

/// A receiver that relies on arm() and the bell gets all messages, and those of each sender in
/// order.
TEST(senders_on_many_threads_lose_nothing) {
  constexpr int kSenders = 3, kEach = 2'000;
  struct WaitingBell {
    void ring() const noexcept {
      rung = true;
      rung.notify_one();
    }
    mutable std::atomic<bool> rung = false;
  } bell;
  Mailbox<int, WaitingBell> box(bell);
  std::vector<std::thread> senders;
  for (int sender = 0; sender < kSenders; ++sender)
    senders.emplace_back([&box, sender] {
      for (int i = 0; i < kEach; ++i) box.post(sender * kEach + i);
    });
  int next[kSenders] = {};
  for (int taken = 0; taken < kSenders * kEach;) {
    for (const int message : box.take()) {
      ck_assert_int_eq(message % kEach, next[message / kEach]++);
      ++taken;
    }
    if (taken == kSenders * kEach || !box.arm()) continue;
    bell.rung.wait(false);
    bell.rung = false;
  }
  for (std::thread& sender : senders) sender.join();
}

}  // namespace

}  // namespace erdma::transport
