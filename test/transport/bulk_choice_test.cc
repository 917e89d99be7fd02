#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <utility>

#include <rdma/fi_errno.h>

#include "fake/bulk_channel.h"
#include "fake/shared_core.h"
#include "libcheck.h"

/// Tests when a channel copies through its slots although CMA is permitted.
namespace erdma::transport::shm {
namespace {

TEST(copy_by_choice_is_read_where_the_sender_stops_coming, 8) {
  Channel channel(Ways::chosen);
  Message message(channel, kMiB + 12345);
  for (int i = 0; i < _i; ++i) {
    channel.in.poll(channel.sink);
    channel.out.poll();
  }
  for (int i = 0; i < kManyPolls && channel.in.active(); ++i) {
    // A receiver that is not ready may sleep, and nothing would wake it.
    ck_assert(channel.in.ready());
    channel.in.poll(channel.sink);
  }
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert_uint_gt(channel.in_counters.cma_read_bytes, 0);
  ck_assert_uint_eq(channel.in_counters.cma_read_bytes + channel.in_counters.bounce_in_bytes,
                    message.length);
  // The next message does not wait for that sender. The message after it does, and is bounced.
  const uint64_t bounced = channel.in_counters.bounce_in_bytes;
  Message next(channel, 64 * kKiB, 8);
  channel.run();
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, bounced);
  Message later(channel, 64 * kKiB, 9);
  channel.run();
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, bounced + later.length);
  ck_assert(next.arrived() && later.arrived());
}

/// The sender is inside a system call that moves bytes of another transfer.
TEST(copy_by_choice_waits_for_a_sender_that_is_busy_for_a_tenth_of_a_millisecond) {
  Channel channel(Ways::chosen);
  Message message(channel, kMiB);
  for (int i = 0; i < 100; ++i) channel.in.poll(channel.sink);  // a microsecond each
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, message.length);
}

TEST(copy_by_choice_needs_a_sender_that_is_attached) {
  Channel channel(Ways::chosen, false);
  Message message(channel, kMiB);
  channel.in.poll(channel.sink);
  ck_assert_uint_gt(channel.in_counters.cma_read_bytes, 0);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert_int_eq(channel.memory.calls, 0);
}

/// Rows: the core of the sender or of the receiver is shared; copies are preferred or not.
TEST(where_a_core_is_shared_the_receiver_reads_alone, 4) {
  Channel channel(_i % 2 ? Ways::chosen : Ways::dual);
  share(_i / 2 ? channel.in_core : channel.out_core);
  channel.out.poll();
  Message message(channel, kMiB + 12345);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert_uint_eq(channel.in_counters.cma_read_bytes, message.length);
  ck_assert_int_eq(channel.memory.calls, 0);
}

/// The sender reads what this side sends at the same time.
TEST(where_messages_go_both_ways_the_receiver_reads_alone) {
  Channel channel(Ways::dual);
  channel.memory.both_ways = true;
  channel.out.poll();
  Message message(channel, kMiB + 12345);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert_uint_eq(channel.in_counters.cma_read_bytes, message.length);
}

/// Of two processes that exchange messages, the one that comes later finds its own message read:
/// its end arrives with the announcement of the other one. A sender that did so long before the end
/// of this one has time to help.
TEST(a_message_that_crossed_one_of_this_side_is_read_alone, 2) {
  Channel channel(Ways::dual);
  channel.out.poll();
  channel.memory.both_ways = true;
  Message message(channel, 4 * kMiB + _i);
  channel.memory.both_ways = false;
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert(_i ? channel.in_counters.cma_read_bytes < message.length
               : channel.in_counters.cma_read_bytes == message.length);
}

struct TimeCase {
  Ways ways;
  bool asked;
  bool published;
};
constexpr TimeCase kTimeCases[] = {
    {Ways::dual, true, true},        {Ways::read_only, true, true}, {Ways::dual, false, false},
    {Ways::write_only, true, false}, {Ways::bounce, true, false},
};

/// The sender learns how long the receiver's calls would have taken for the whole message.
TEST(the_receiver_tells_how_long_it_read, std::size(kTimeCases)) {
  const TimeCase& c = kTimeCases[_i];
  Channel channel(c.ways);
  Message message(channel, 128 * kKiB, 7, 3, 2, 0, c.asked), next(channel, 128 * kKiB, 8);
  ck_assert_uint_eq(channel.out.read_time(message.remote_key), 0);
  channel.run();
  ck_assert(message.arrived() && next.arrived());
  ck_assert_uint_eq(channel.out.read_time(message.remote_key) > 0, c.published);
  ck_assert_uint_eq(channel.out.read_time(next.remote_key), 0);
}

TEST(who_is_needed_does_its_part_on_a_shared_core, 2) {
  Channel channel(_i ? Ways::bounce : Ways::write_only);
  share(channel.in_core);
  share(channel.out_core);
  Message message(channel, kMiB + 12345);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert_uint_eq(_i ? channel.in_counters.bounce_in_bytes : channel.out_counters.cma_write_bytes,
                    message.length);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)  // TSan delays signals

/// While it exists, each load of the sender's write state sees another value than the one before:
/// the page with the word is protected, and a handler changes the word, lifts the protection and
/// has the processor trap again after the instruction.
class RestlessSender {
 public:
  explicit RestlessSender(BulkShared& page) {
    s_page = &page;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    action.sa_sigaction = on_access;
    sigaction(SIGSEGV, &action, nullptr);
    action.sa_sigaction = after_access;
    sigaction(SIGTRAP, &action, nullptr);
    protect(PROT_NONE);
  }
  ~RestlessSender() {
    protect(PROT_READ | PROT_WRITE);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGTRAP, SIG_DFL);
  }

 private:
  static constexpr greg_t kTrap = 0x100;  // EFLAGS.TF
  static void protect(int how) { mprotect(s_page, kPageBytes, how); }
  static void on_access(int, siginfo_t* info, void* context) {
    const auto offset =
        static_cast<std::byte*>(info->si_addr) - reinterpret_cast<std::byte*>(s_page);
    if (offset < 0 || size_t(offset) >= kPageBytes) abort();
    protect(PROT_READ | PROT_WRITE);
    if (size_t(offset) == offsetof(BulkShared, write_state)) {
      const bool allowed = s_page->write_state == uint64_t(WriteState::allowed);
      s_page->write_state = uint64_t(allowed ? WriteState::unasked : WriteState::allowed);
    }
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= kTrap;
  }
  static void after_access(int, siginfo_t*, void* context) {
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrap;
    protect(PROT_NONE);
  }

  static BulkShared* s_page;
};
BulkShared* RestlessSender::s_page = nullptr;

/// A receiver that looked twice within one decision let two messages use the same slots.
TEST(messages_take_turns_in_the_slots_whatever_the_sender_announces, 2) {
  Channel channel(Ways::chosen);
  Message first(channel, 3 * kMiB, 1), second(channel, 3 * kMiB, 2), third(channel, kMiB, 3);
  {
    const RestlessSender restless(channel.page());
    if (_i) channel.in.ready();  // one more load
    channel.run();
  }
  for (const Message* message : {&first, &second, &third}) {
    assert_done_once(channel.sink, message->token, 0);
    ck_assert(message->arrived());
  }
  ck_assert_uint_gt(channel.in_counters.bounce_in_bytes, 0);
}

#endif

/// CMA cannot reach the memory of the first message, and the sender does not poll.
TEST(what_this_side_can_read_does_not_wait_for_slots_that_the_sender_must_fill) {
  Channel channel(Ways::dual);
  channel.memory.affordable = true;
  channel.out.poll();
  channel.calls.read = {1, 1, EFAULT};
  Message first(channel, 4 * kMiB, 1);
  await_bounce(channel);
  Message second(channel, kMiB, 2);
  for (int i = 0; i < kManyPolls && channel.sink.done.empty(); ++i) {
    ck_assert(channel.in.ready());
    channel.in.poll(channel.sink);
  }
  assert_done_once(channel.sink, 2, 0);
  channel.run();
  assert_done_once(channel.sink, 1, 0);
  ck_assert(first.arrived() && second.arrived());
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, first.length);
}

TEST(copy_is_not_chosen_where_its_memory_is_one_too_many) {
  Channel channel(Ways::chosen);
  channel.memory.affordable = false;
  Message message(channel, kMiB);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert_int_eq(channel.memory.calls, 0);
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);
}

TEST(copy_is_chosen_no_more_once_its_memory_was_refused) {
  Channel channel(Ways::chosen);
  channel.memory.status = -FI_ENOMEM;
  Message first(channel, kMiB, 1), second(channel, kMiB, 2);
  channel.run();
  assert_done_once(channel.sink, 1, 0);
  assert_done_once(channel.sink, 2, 0);
  ck_assert(first.arrived() && second.arrived());
  ck_assert_int_eq(channel.memory.calls, 2);  // for all slots, and for a few
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);
}

struct SlotsCase {
  bool shared_core;
  uint32_t affordable;
  size_t most;  ///< slots for which there is memory
  uint32_t used;
};
constexpr SlotsCase kSlotsCases[] = {
    {false, kBounceSlots, kBounceSlots, kBounceSlots},
    {true, kBounceSlots, kBounceSlots, kFewBounceSlots},
    {false, kFewBounceSlots, kBounceSlots, kFewBounceSlots},
    {false, 0, kBounceSlots, kFewBounceSlots},  // there is no other way
    {false, kBounceSlots, kFewBounceSlots, kFewBounceSlots},
};

/// Many slots keep the lines that are written next out of the receiver's cache.
TEST(copies_use_all_slots_where_each_process_has_a_core_and_memory, std::size(kSlotsCases)) {
  const SlotsCase& c = kSlotsCases[_i];
  Channel channel(Ways::bounce);
  if (c.shared_core) share(channel.in_core);
  channel.memory.slots = c.affordable;
  channel.memory.most = c.most;
  for (uint64_t token = 1; token <= 2; ++token) {
    Message message(channel, 3 * kMiB + 12345, token);
    channel.run();
    assert_done_once(channel.sink, token, 0);
    ck_assert(message.arrived());
    ck_assert_uint_eq(channel.memory.backed, c.used);
  }
  const int refused = c.most < kBounceSlots;
  ck_assert_int_eq(channel.memory.calls, 1 + refused);  // what was refused is not asked again
}

/// Another channel's lack delays what this one asks for.
TEST(a_channel_that_has_to_wait_for_slots_gets_all_of_them_later) {
  Channel channel(Ways::bounce);
  channel.memory.busy = 1;
  for (const uint32_t slots : {kFewBounceSlots, kBounceSlots}) {
    Message message(channel, kMiB, slots);
    channel.run();
    assert_done_once(channel.sink, slots, 0);
    ck_assert_uint_eq(channel.memory.backed, slots);
  }
}

/// A transfer begins behind the one before, unless few slots are used.
TEST(transfers_go_round_in_the_slots, 2) {
  Channel channel(Ways::bounce);
  if (_i) channel.memory.slots = kFewBounceSlots;
  constexpr size_t kLength = 512 * kKiB;
  uint32_t pieces = 0;
  for (uint64_t left = kLength; left > 0; ++pieces) left -= piece_bytes(pieces, left);
  for (uint32_t token = 0; token < 2 * kBounceSlots / pieces; ++token) {
    Message message(channel, kLength, token);
    TicketState state;
    while ((state = unpack_state(channel.page().ticket[0].state)).mode != Mode::bounce) {
      channel.in.poll(channel.sink);
      if (token == 0) channel.out.poll();  // it announces that it cannot write
    }
    ck_assert_uint_eq(state.all_slots, !_i);
    ck_assert_uint_eq(state.first_slot, _i ? 0 : token * pieces % kBounceSlots);
    channel.run();
    ck_assert(message.arrived());
    assert_done_once(channel.sink, token, 0);
  }
}

Options plain(Options options = {}) {
  options.streaming = StreamingPolicy::never;
  return options;
}
/// Transfers before the first trial; calls are slow, or fast.
constexpr unsigned kBeforeTrial = PathChoice::kFirstTrial - 1;
constexpr unsigned kBeforeRareTrial = PathChoice::kRarely * PathChoice::kFirstTrial - 1;
/// Transfers of a long trial. The first ones, until all slots were used, tell nothing.
constexpr unsigned long_trial(size_t length) {
  const auto whole = unsigned(length / kBounceSlotBytes);  // slots; there is one piece more
  return PathChoice::kLongTrials + (kBounceSlots + whole) / (whole + 1);
}

TEST(paths_are_measured_on_what_is_sent, 2) {
  Channel channel(Ways::chosen, true, plain());
  channel.memory.fast = _i;  // calls of the kernel
  const unsigned trials = _i ? PathChoice::kTrials : long_trial(256 * kKiB);
  for (uint64_t token = 0; token < (_i ? kBeforeRareTrial : kBeforeTrial) + trials; ++token) {
    Message message(channel, 256 * kKiB, token);
    channel.run();
    ck_assert(message.arrived());
  }
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, trials * 256 * kKiB);
  ck_assert_uint_eq(channel.memory.backed, _i ? kFewBounceSlots : kBounceSlots);
}

/// Sends messages of 4 MiB, whose calls take this time each, until copies have been tried; a trial
/// takes a few microseconds. Returns the bytes of the next message that were copied.
uint64_t copied_after_long_trials(uint64_t call) {
  Channel channel(Ways::chosen, true, plain());
  channel.memory.fast = true;
  uint64_t token = 0;
  const auto send = [&] {
    Message message(channel, 4 * kMiB, ++token);
    for (int i = 0; i < kManyPolls && channel.in.active(); ++i) {
      channel.calls.read.meanwhile = [&] { channel.clock.pass(call); };
      channel.in.poll(channel.sink);
      channel.out.poll();
    }
    ck_assert(message.arrived());
  };
  // The rest of the last message that tries a copy takes the path that is chosen then.
  for (uint64_t tried = 0; tried < PathChoice::kTrials * BulkTransfers::kTrialBytes;) {
    ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, tried);
    send();
    if (token > kBeforeRareTrial) tried += BulkTransfers::kTrialBytes;
  }
  const uint64_t copied = channel.in_counters.bounce_in_bytes;
  send();
  return channel.in_counters.bounce_in_bytes - copied;
}

/// A copy may be much slower than CMA, so it is tried on a part of a long message only. What the
/// whole message would have taken decides.
TEST(a_copy_is_tried_on_a_part_of_a_long_message) {
  ck_assert_uint_eq(copied_after_long_trials(3'000), 0);
  ck_assert_uint_eq(copied_after_long_trials(50'000), 4 * kMiB);
}

/// Sends messages of 1 MiB until copies have been tried; `step` makes the first steps of
/// each, and is told whether it is copied. Returns the bytes of the next message that were copied,
/// which crosses one of this side if `then_both_ways`.
template <typename Step>
uint64_t copied_after_trial(bool both_ways, Step&& step, bool then_both_ways) {
  Channel channel(Ways::chosen, true, plain());
  channel.memory.both_ways = both_ways;
  uint64_t token = 0;
  const unsigned trials = both_ways ? PathChoice::kTrials : long_trial(kMiB);
  for (; token < kBeforeTrial + trials; ++token) {
    Message message(channel, kMiB, token);
    step(channel, token >= kBeforeTrial);
    channel.run();
    ck_assert(message.arrived());
  }
  const uint64_t bounced = channel.in_counters.bounce_in_bytes;
  ck_assert_uint_eq(bounced, trials * kMiB);
  channel.memory.both_ways = then_both_ways;
  Message message(channel, kMiB, token);
  channel.run();
  return channel.in_counters.bounce_in_bytes - bounced;
}

template <typename Step>
uint64_t copied_after_trial(bool both_ways, Step&& step) {
  return copied_after_trial(both_ways, std::forward<Step>(step), both_ways);
}

/// A copy that is faster one way is not taken for faster both ways.
TEST(messages_both_ways_are_judged_apart) {
  const auto slow_calls = [](Channel& channel, bool copies) {
    channel.in.poll(channel.sink);
    channel.clock.pass(copies ? 60'000 : 170'000);
  };
  ck_assert_uint_eq(copied_after_trial(false, slow_calls, false), kMiB);
  ck_assert_uint_eq(copied_after_trial(false, slow_calls, true), 0);
}

/// The time of CMA that was tried beside the copies of the other side is that of its calls. Rows:
/// messages go one way, or both ways; then CMA takes less.
TEST(cma_beside_copies_of_the_other_side_counts_as_its_calls, 2) {
  const uint64_t copied = copied_after_trial(_i, [](Channel& channel, bool copies) {
    channel.in.poll(channel.sink);
    channel.clock.pass(copies ? 60'000 : 170'000);
  });
  ck_assert_uint_eq(copied, _i ? 0 : kMiB);
}

/// A copy takes longer than CMA, since the sender is inside CMA calls for its own messages when it
/// should fill slots. Rows: messages go one way, or both ways; then copies take less if both copy.
TEST(a_copy_beside_cma_of_the_other_side_counts_as_one_beside_its_copies, 2) {
  const uint64_t copied = copied_after_trial(_i, [](Channel& channel, bool copies) {
    if (!copies) channel.calls.read.meanwhile = [&] { channel.clock.pass(180'000); };
    channel.in.poll(channel.sink);
    if (copies) channel.clock.pass(195'000);
  });
  ck_assert_uint_eq(copied, _i ? kMiB : 0);
}

TEST(rates_without_the_sender_are_no_rates_of_cma) {
  Channel channel(Ways::chosen, false, plain());
  uint64_t token = 0;
  for (; token < PathChoice::kFirstTrial; ++token) {
    Message alone(channel, 256 * kKiB, token);
    channel.run();
  }
  channel.out.attach(channel.shared);
  channel.out.poll();
  for (const unsigned end = unsigned(token) + kBeforeTrial; token < end; ++token) {
    Message message(channel, 256 * kKiB, token);
    channel.run();
  }
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);
  Message message(channel, 256 * kKiB, token);
  channel.run();
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 256 * kKiB);
}

/// Makes one transfer without the sender and returns its number of CMA calls.
unsigned calls_alone(Channel& channel, uint64_t token) {
  const unsigned before = channel.calls.read.calls;
  Message message(channel, 256 * kKiB, token);
  for (int i = 0; i < kManyPolls && channel.in.active(); ++i) channel.in.poll(channel.sink);
  ck_assert(message.arrived());
  assert_done_once(channel.sink, token, 0);
  channel.sink.done.clear();
  return channel.calls.read.calls - before;
}

TEST(sender_that_leaves_its_half_is_asked_ever_more_rarely) {
  Channel channel(Ways::dual);
  channel.out.poll();  // tells the receiver that the sender may write
  uint64_t token = 0;
  for (unsigned alone : {1u, 2u, 4u, 8u, 16u, 16u}) {
    ck_assert_uint_eq(calls_alone(channel, ++token), 2);
    for (unsigned i = 0; i < alone; ++i) {
      ck_assert_uint_eq(calls_alone(channel, ++token), 1);
      ck_assert_int_eq(channel.out.poll(), 0);
    }
  }
}

TEST(sender_that_was_not_there_yet_left_nothing) {
  Channel channel(Ways::dual, false);
  ck_assert_uint_eq(calls_alone(channel, 1), 2);
  ck_assert_uint_eq(calls_alone(channel, 2), 2);
  channel.out.attach(channel.shared);
  Message message(channel, 4 * kMiB, 3);
  channel.run();
  ck_assert(message.arrived());
  ck_assert_uint_gt(channel.out_counters.cma_write_bytes, 0);
}

TEST(sender_that_takes_its_half_is_asked_again) {
  Channel channel(Ways::dual);
  for (uint64_t token = 1; token <= 5; ++token) {
    const uint64_t written = channel.out_counters.cma_write_bytes;
    Message message(channel, 4 * kMiB, token);
    channel.run();
    ck_assert(message.arrived());
    ck_assert_uint_gt(channel.out_counters.cma_write_bytes, written);
  }
}

/// `right`: the CMA calls reach the peer's memory. `dead`: after the read, the kernel reports that
/// the peer has ended. `mapped`: there is memory where the peer's nonce was.
int status_of_read(bool right, bool dead, size_t limit = SIZE_MAX, bool mapped = true) {
  Channel channel(Ways::read_only);
  const int exited = eventfd(dead, EFD_CLOEXEC);  // a pidfd is readable once its process ended
  CmaIdentity& identity =
      fake::identify(channel.reader, own_cma_identity(), exited, &channel.clock);
  if (!right) ++identity.nonce;
  channel.calls.read = {1, 1, 0, limit};
  if (!mapped) channel.calls.read.unmapped = remote_address(identity.nonce_address);
  Message message(channel, 64 * kKiB);
  for (int i = 0; i < kManyPolls && channel.in.active(); ++i) channel.in.poll(channel.sink);
  ck_assert_uint_eq(channel.sink.done.size(), 1);
  const int status = channel.sink.done.begin()->second.at(0);
  ck_assert(status != 0 || message.arrived());
  return status;
}

TEST(read_that_took_the_nonce_along_needs_no_other_proof) {
  ck_assert_int_eq(status_of_read(true, true), 0);
}

TEST(read_that_ended_before_its_last_byte_asks_whether_the_peer_lives) {
  ck_assert_int_eq(status_of_read(true, false, kKiB), 0);
  ck_assert_int_eq(status_of_read(true, true, kKiB), -FI_ECONNRESET);
}

/// The nonce that is read next proves the read before it, even if the peer has died since.
TEST(read_that_ended_before_the_nonce_is_proven_by_a_read_of_the_nonce) {
  for (const size_t limit : {64 * kKiB, 64 * kKiB + 7})
    for (const bool dead : {false, true}) {
      ck_assert_int_eq(status_of_read(true, dead, limit), 0);
      ck_assert_int_eq(status_of_read(false, dead, limit), -FI_ECONNRESET);
    }
}

/// The pidfd is silent while the process executes another program, and so is the connection thread
/// until it has seen the socket close.
TEST(read_of_memory_without_a_nonce_was_of_another_program) {
  ck_assert_int_eq(status_of_read(true, false, SIZE_MAX, false), -FI_ECONNRESET);
  // The first call ends inside the message, and the second one before the nonce.
  ck_assert_int_eq(status_of_read(true, false, kKiB, false), -FI_ECONNRESET);
}

/// A peer that shows its life. `dies`: during the first read. The status, and the calls that it
/// took.
std::pair<int, unsigned> read_while_shown(bool right, bool dies, size_t limit = SIZE_MAX) {
  Channel channel(Ways::read_only);
  std::atomic<uint32_t> life = 1;
  CmaIdentity& identity = fake::identify(channel.reader, own_cma_identity(),
                                         eventfd(dies, EFD_CLOEXEC), &channel.clock);
  channel.reader.life = &life;
  if (!right) ++identity.nonce;
  channel.calls.read = {1, 1, 0, limit};
  if (dies) channel.calls.read.meanwhile = [&] { life = FUTEX_OWNER_DIED; };
  Message message(channel, 64 * kKiB);
  for (int i = 0; i < kManyPolls && channel.in.active(); ++i) channel.in.poll(channel.sink);
  ck_assert_uint_eq(channel.sink.done.size(), 1);
  const int status = channel.sink.done.begin()->second.at(0);
  ck_assert(status != 0 || message.arrived());
  return {status, channel.calls.read.calls};
}

TEST(read_of_a_peer_that_shows_its_life_needs_no_nonce) {
  ck_assert(read_while_shown(false, false) == std::pair(0, 1u));
  ck_assert(read_while_shown(false, false, kKiB) == std::pair(0, 2u));
}

/// The bytes are the peer's if the nonce is still there, even if the pidfd reports its exit.
TEST(read_during_which_the_peer_died_is_proven_by_its_nonce) {
  for (const size_t limit : {kKiB, SIZE_MAX}) {
    ck_assert(read_while_shown(true, true, limit) == std::pair(0, limit == kKiB ? 3u : 2u));
    ck_assert(read_while_shown(false, true, limit) == std::pair(-FI_ECONNRESET, 2u));
  }
}

/// The socket of the peer has closed, so it may have executed another program.
TEST(shown_life_does_not_outweigh_a_closed_socket) {
  std::atomic<uint32_t> life = 1;
  Channel channel(Ways::read_only);
  fake::identify(channel.reader, own_cma_identity(), eventfd(0, EFD_CLOEXEC), &channel.clock);
  channel.reader.life = &life;
  ck_assert(channel.reader.exists());
  channel.reader.process->life.suspend();
  ck_assert(!channel.reader.exists());
  channel.reader.process->life.resume();
  life = 0;
  ck_assert(!channel.reader.exists());
}

/// Without a pidfd, only the nonce shows that the memory belongs to another process.
TEST(read_of_another_nonce_was_of_a_stranger) {
  ck_assert_int_eq(status_of_read(false, true), -FI_ECONNRESET);
  ck_assert_int_eq(status_of_read(false, false), -FI_ECONNRESET);
}

}  // namespace

}  // namespace erdma::transport::shm
