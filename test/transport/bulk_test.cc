#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/bulk_channel.h"
#include "libcheck.h"
#include "transport/shm/bulk_in.h"

namespace erdma::transport::shm {
namespace {

constexpr size_t kSizes[] = {0,      1,         4095,          4096,         8192,
                             8193,   16 * kKiB, 16 * kKiB + 1, 65535,        64 * kKiB,
                             100000, kMiB - 1,  kMiB,          5 * kMiB + 3, 17 * kMiB + 4097};

TEST(transfer_is_exact_for_every_size_way_and_shape,
     int(std::size(kWays)) * int(std::size(kSizes))) {
  const Ways ways = kWays[size_t(_i) % std::size(kWays)];
  const size_t length = kSizes[size_t(_i) / std::size(kWays)];
  for (size_t shape = 0; shape < (length > kMiB ? 2u : 16u); ++shape) {
    Channel channel(ways);
    Message message(channel, length, 7, 1 + (shape * 3 + 3) % 4, 1 + shape / 4);
    bool whole = false;
    message.expect_at_done(channel, whole);
    ck_assert_uint_eq(channel.sink.done.size(), 0);
    channel.run();
    assert_done_once(channel.sink, 7, 0);
    ck_assert(whole);
    const uint64_t moved = channel.in_counters.cma_read_bytes +
                           channel.out_counters.cma_write_bytes +
                           channel.in_counters.bounce_in_bytes;
    ck_assert_uint_eq(moved, length);
    const bool bounces = ways == Ways::bounce || ways == Ways::chosen;
    ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, bounces ? length : 0);
    channel.out.revoke(message.remote_key);
    ck_assert(!channel.out.active());
  }
}

TEST(both_sides_share_a_dual_transfer) {
  Channel channel(Ways::dual);
  Message message(channel, 64 * kKiB);
  channel.run();
  ck_assert_uint_gt(channel.in_counters.cma_read_bytes, 0);
  channel.sink.done.clear();
  Message larger(channel, 4 * kMiB);
  channel.run();
  ck_assert_uint_gt(channel.out_counters.cma_write_bytes, 0);
  assert_done_once(channel.sink, 7, 0);
  ck_assert(larger.arrived());
}

TEST(dual_transfer_is_filled_from_both_ends) {
  Channel channel(Ways::dual);
  Message message(channel, 2 * kMiB, 7, 1, 1);
  channel.in.poll(channel.sink);
  channel.out.poll();
  const std::vector<unsigned char> from = message.from.flat(), to = message.to.flat();
  const size_t read = channel.in_counters.cma_read_bytes;
  const size_t written = channel.out_counters.cma_write_bytes;
  ck_assert_uint_gt(read, 0);
  ck_assert_uint_gt(written, 0);
  ck_assert_mem_eq(to.data(), from.data(), read);
  ck_assert_mem_eq(to.data() + from.size() - written, from.data() + from.size() - written, written);
  for (size_t i = read; i < from.size() - written; ++i) ck_assert_uint_eq(to[i], 0x22);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
}

constexpr uint64_t kRanges[] = {1,       kPageBytes, 64 * kKiB, 96 * kKiB + 1,     512 * kKiB,
                                600'000, kMiB,       4 * kMiB,  16 * kMiB + 12345, kMaxRange};

TEST(shared_chunks_are_even_in_number_and_within_bounds, std::size(kRanges)) {
  const uint64_t range = kRanges[_i];
  const size_t chunk = chunk_bytes(range, true);
  const uint32_t chunks = chunks_of(range, chunk);
  ck_assert_uint_eq(chunk % kPageBytes, 0);
  ck_assert_uint_ge(chunk, kMinChunk);
  ck_assert_uint_le(chunk, kMaxChunk);
  ck_assert_uint_le(chunks, Claims::kMaxChunks);
  if (range > kMinChunk) ck_assert_uint_eq(chunks % 2, 0);
}

TEST(receiver_alone_finishes_when_sender_never_polls, 2) {
  Channel channel(Ways::dual, _i == 0);
  Message message(channel, 3 * kMiB);
  for (int i = 0; i < 1000 && channel.in.active(); ++i) channel.in.poll(channel.sink);
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
}

TEST(receiver_that_may_not_read_waits_until_sender_is_attached, 2) {
  const Ways ways = _i == 0 ? Ways::write_only : Ways::bounce;
  Channel channel(ways, false);
  Message message(channel, kMiB);
  for (int i = 0; i < 100; ++i) channel.in.poll(channel.sink);
  ck_assert(channel.in.active());
  ck_assert(!channel.in.ready());
  channel.out.attach(channel.shared);
  ck_assert(channel.in.ready());
  ck_assert(channel.out.ready());
  // A positive result makes the polling side wake the receiver.
  ck_assert_int_gt(channel.out.poll(), 0);
  ck_assert(!channel.out.ready());
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert_int_eq(channel.memory.calls, ways == Ways::bounce ? 1 : 0);
}

TEST(poll_moves_little_at_a_time, std::size(kWays)) {
  Channel channel(kWays[_i]);
  Message message(channel, 16 * kMiB);
  for (int i = 0; i < 4; ++i) {
    channel.in.poll(channel.sink);
    channel.out.poll();
  }
  ck_assert(channel.in.active());
  ck_assert_uint_le(channel.in_counters.cma_read_bytes, 4 * (kPollBytes + kMaxChunk));
  ck_assert_uint_le(channel.out_counters.cma_write_bytes, 4 * (kPollBytes + kMaxChunk));
  channel.run();
  assert_done_once(channel.sink, 7, 0);
}

TEST(many_queued_transfers_all_arrive, std::size(kWays)) {
  Channel channel(kWays[_i]);
  std::vector<std::unique_ptr<Message>> messages;
  for (uint64_t token = 0; token < 40; ++token)
    messages.push_back(std::make_unique<Message>(channel, 1000 + token * 9999, token));
  channel.run();
  for (const auto& message : messages) {
    assert_done_once(channel.sink, message->token, 0);
    ck_assert(message->arrived());
  }
  ck_assert(!channel.in.active());
}

TEST(upcall_may_start_the_next_transfer) {
  Channel channel(Ways::dual);
  Message message(channel, 64 * kKiB);
  Pieces again(64 * kKiB, 1, 0x33);
  channel.sink.then = [&](uint64_t token, int) {
    if (token == 7)
      ck_assert_int_eq(channel.in.start(message.remote_key, again.iov, 1, 64 * kKiB, 8), 0);
  };
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  assert_done_once(channel.sink, 8, 0);
  ck_assert(again.flat() == message.from.flat());
}

// ---- failures of the calls ---------------------------------------------------------------------

struct Fault {
  int error;
  size_t limit;
  bool forever;
  bool denies;
};
constexpr Fault kFaults[] = {
    {EPERM, SIZE_MAX, true, true},    {ENOSYS, SIZE_MAX, true, true},
    {EACCES, SIZE_MAX, true, true},   {ESRCH, SIZE_MAX, true, false},
    {EFAULT, SIZE_MAX, false, false}, {EFAULT, SIZE_MAX, true, false},
    {ENOMEM, SIZE_MAX, false, false}, {ENOMEM, SIZE_MAX, true, false},
    {EINTR, SIZE_MAX, false, false},  {0, 1000, false, false},
    {0, 4096, true, false},           {0, 0, false, false},
};

void plan(fake::CmaCalls::Plan& plan, const Fault& fault, unsigned k) {
  plan.first = k;
  plan.last = fault.forever ? fake::CmaCalls::kForever : k;
  plan.error = fault.error;
  plan.limit = fault.limit;
}

/// Runs one message whose k-th call fails. Returns false once the message makes fewer than k calls.
bool survive_fault(Ways ways, const Fault& fault, unsigned k, bool reads, bool writes) {
  Channel channel(ways);
  if (reads) plan(channel.calls.read, fault, k);
  if (writes) plan(channel.calls.write, fault, k);
  Message message(channel, kMiB + 12345);
  bool whole = false;
  message.expect_at_done(channel, whole);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(whole);
  const bool read_hit = reads && channel.calls.read.calls >= k;
  const bool write_hit = writes && channel.calls.write.calls >= k;
  if (ways != Ways::write_only) {
    const bool denied = channel.reader.read.permission == Permission::denied;
    ck_assert_int_eq(denied, read_hit && fault.denies);
    ck_assert_uint_eq(channel.in_counters.cma_refusals, denied);
  }
  if (ways != Ways::read_only) {
    const bool denied = channel.writer.write.permission == Permission::denied;
    ck_assert_int_eq(denied, write_hit && fault.denies);
    ck_assert_uint_eq(channel.out_counters.cma_refusals, denied);
  }
  return read_hit || write_hit;
}

TEST(transfer_survives_any_fault_of_any_call, 3 * int(std::size(kFaults))) {
  const Fault& fault = kFaults[size_t(_i) % std::size(kFaults)];
  const size_t side = size_t(_i) / std::size(kFaults);
  for (const Ways ways : {Ways::dual, Ways::read_only, Ways::write_only}) {
    const bool reads = side != 1 && ways != Ways::write_only;
    const bool writes = side != 0 && ways != Ways::read_only;
    if (!reads && !writes) continue;
    unsigned k = 1;
    while (k < 2000 && survive_fault(ways, fault, k, reads, writes)) ++k;
    ck_assert_uint_gt(k, 2);
    ck_assert_uint_lt(k, 2000);
  }
}

TEST(denial_holds_for_later_messages_and_is_counted_once) {
  Channel channel(Ways::read_only);
  plan(channel.calls.read, {EPERM, SIZE_MAX, true, true}, 2);
  Message first(channel, 4 * kMiB, 1), second(channel, 4 * kMiB, 2), third(channel, 64 * kKiB, 3);
  channel.run();
  for (const Message* message : {&first, &second, &third}) {
    assert_done_once(channel.sink, message->token, 0);
    ck_assert(message->arrived());
  }
  ck_assert_uint_eq(channel.in_counters.cma_refusals, 1);
  const unsigned calls = channel.calls.read.calls;
  Message later(channel, kMiB, 4);
  channel.run();
  ck_assert(later.arrived());
  ck_assert_uint_eq(channel.calls.read.calls, calls);
  ck_assert_uint_ge(channel.in_counters.bounce_in_bytes, kMiB);
}

TEST(unreachable_memory_bounces_this_message_only) {
  Channel channel(Ways::dual);
  plan(channel.calls.read, {EFAULT, SIZE_MAX, false, false}, 2);
  Message first(channel, 4 * kMiB, 1);
  channel.run();
  ck_assert(first.arrived());
  const uint64_t bounced = channel.in_counters.bounce_in_bytes;
  ck_assert_uint_gt(bounced, 0);
  Message second(channel, 4 * kMiB, 2);
  channel.run();
  ck_assert(second.arrived());
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, bounced);
  ck_assert_uint_eq(channel.in_counters.cma_refusals, 0);
}

TEST(transfer_fails_when_slots_cannot_be_backed) {
  Channel channel(Ways::bounce);
  channel.memory.status = -FI_ENOMEM;
  Message message(channel, kMiB);
  channel.run();
  assert_done_once(channel.sink, 7, -FI_ENOMEM);
  channel.memory.status = 0;
  Message later(channel, kMiB, 8);
  channel.run();
  assert_done_once(channel.sink, 8, 0);
  ck_assert(later.arrived());
}

TEST(transfer_waits_for_the_memory_of_the_slots) {
  Channel channel(Ways::bounce);
  channel.memory.status = -FI_EAGAIN;
  Message message(channel, kMiB);
  for (int i = 0; i < 3; ++i) channel.in.poll(channel.sink), channel.out.poll();
  ck_assert(channel.sink.done.empty());
  ck_assert(channel.in.ready());  // nothing would wake this side for it
  channel.memory.status = 0;
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
}

TEST(a_copy_is_chosen_again_after_there_was_no_memory_for_the_slots_yet) {
  Channel channel(Ways::chosen);
  channel.memory.status = -FI_EAGAIN;
  Message first(channel, kMiB, 1);
  channel.run();
  ck_assert_int_gt(channel.memory.calls, 0);
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);
  channel.memory.status = 0;
  Message second(channel, kMiB, 2);
  channel.run();
  ck_assert(first.arrived() && second.arrived());
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, second.length);
}

// ---- revocation, abort, nonsense ---------------------------------------------------------------

TEST(revocation_fails_the_transfer_whenever_it_comes, 6 * int(std::size(kWays))) {
  const Ways ways = kWays[size_t(_i) % std::size(kWays)];
  Channel channel(ways);
  Message message(channel, 8 * kMiB), other(channel, kMiB, 8);
  for (int i = 0; i < _i / int(std::size(kWays)); ++i) {
    channel.in.poll(channel.sink);
    channel.out.poll();
  }
  channel.out.revoke(message.remote_key);
  const uint64_t written =
      channel.out_counters.cma_write_bytes + channel.out_counters.bounce_out_bytes;
  message.from = Pieces(0, 1, 0);  // ASan reports an access by the sender from now on
  if (permits_reads(ways)) channel.out.poll();
  channel.run();
  assert_done_once(channel.sink, 7, -FI_ECANCELED);
  assert_done_once(channel.sink, 8, 0);
  ck_assert(other.arrived());
  ck_assert_uint_le(channel.out_counters.cma_write_bytes + channel.out_counters.bounce_out_bytes,
                    written + kMiB);
}

/// There are more messages, of two groups in turn, than run at a time.
TEST(one_group_ends_and_the_others_go_on, 6 * int(std::size(kWays))) {
  const Ways ways = kWays[size_t(_i) % std::size(kWays)];
  Channel channel(ways);
  std::vector<std::unique_ptr<Message>> messages;
  for (uint64_t token = 0; token < 6; ++token)
    messages.push_back(std::make_unique<Message>(channel, 4 * kMiB, token, 3, 2, token % 2));
  for (int i = 0; i < _i / int(std::size(kWays)); ++i) {
    channel.in.poll(channel.sink);
    channel.out.poll();
  }
  for (int i = 0; i < kManyPolls && !channel.in.quiesce(1); ++i) channel.out.poll();
  ck_assert(channel.in.quiesce(1));
  channel.in.cancel(channel.sink, -FI_ECANCELED, 1);
  for (const auto& message : messages) {
    if (message->token % 2 == 0) continue;
    assert_done_once(channel.sink, message->token, -FI_ECANCELED);
    message->to = Pieces(0, 1, 0);  // ASan reports an access from now on
  }
  channel.run();
  for (const auto& message : messages) {
    if (message->token % 2) continue;
    assert_done_once(channel.sink, message->token, 0);
    ck_assert(message->arrived());
  }
  ck_assert_uint_eq(channel.sink.order.size(), 6);
}

TEST(cancel_reports_everything_once_and_stops_the_sender, 6 * int(std::size(kWays))) {
  const Ways ways = kWays[size_t(_i) % std::size(kWays)];
  Channel channel(ways);
  std::vector<std::unique_ptr<Message>> messages;
  for (uint64_t token = 0; token < 6; ++token)
    messages.push_back(std::make_unique<Message>(channel, 4 * kMiB, token));
  for (int i = 0; i < _i / int(std::size(kWays)); ++i) {
    channel.in.poll(channel.sink);
    channel.out.poll();
  }
  const uint64_t read = channel.in_counters.cma_read_bytes;
  channel.in.cancel(channel.sink, -FI_ECONNRESET);
  for (const auto& message : messages) {
    assert_done_once(channel.sink, message->token, -FI_ECONNRESET);
    message->to = Pieces(0, 1, 0);  // ASan reports an access from now on
  }
  ck_assert(!channel.in.active());
  for (int i = 0; i < 100; ++i) {
    channel.out.poll();
    channel.in.poll(channel.sink);
  }
  ck_assert_uint_eq(channel.sink.order.size(), 6);
  ck_assert_uint_eq(channel.in_counters.cma_read_bytes, read);
}

TEST(malformed_key_is_refused) {
  Channel channel(Ways::dual);
  Pieces from(kMiB, 2, 0x11), to(kMiB, 1, 0x22);
  RemoteKey good;
  ck_assert_int_eq(channel.out.share(from.iov, 2, kMiB, good), 0);
  channel.shared_keys.push_back(good);
  ck_assert_int_eq(channel.in.start(good, to.iov, 1, kMiB + 1, 1), -FI_EINVAL);
  ck_assert_int_eq(channel.in.start(good, to.iov, kMaxIov + 1, kMiB, 1), -FI_EINVAL);
  RemoteKey bad = good;
  for (const size_t length : {kMiB, size_t{0}}) {  // the key of an empty transfer is checked, too
    for (const size_t size : {size_t{0}, size_t{15}, size_t(good.size - 1), size_t{255}}) {
      bad.size = uint8_t(size);
      ck_assert_int_eq(channel.in.start(bad, to.iov, 1, length, 1), -FI_EINVAL);
    }
    bad = good;
    bad.bytes[1] = std::byte{5};  // number of pieces
    ck_assert_int_eq(channel.in.start(bad, to.iov, 1, length, 1), -FI_EINVAL);
    bad = good;
  }
  const uint32_t none = transport::shm::kMaxShared;  // the first index beyond the table
  std::memcpy(bad.bytes + 4, &none, sizeof(none));
  ck_assert_int_eq(channel.in.start(bad, to.iov, 1, kMiB, 1), -FI_EINVAL);
  bad = good;
  std::memset(bad.bytes + 24, 0xFF, 8);  // length of the first piece
  ck_assert_int_eq(channel.in.start(bad, to.iov, 1, kMiB, 1), -FI_EINVAL);
  bad = good;
  bad.bytes[0] = std::byte(transport::KeyKind::target);
  ck_assert_int_eq(channel.in.start(bad, to.iov, 1, kMiB, 1), -FI_EINVAL);
  ck_assert(!channel.in.active());
  channel.out.revoke(bad);
  ck_assert_int_eq(channel.out.share(from.iov, kMaxIov + 1, kMiB, bad), -FI_EINVAL);
  ck_assert_int_eq(channel.out.share(from.iov, 2, kMiB + 1, bad), -FI_EINVAL);
}

TEST(memory_revoked_and_shared_anew_is_not_confused) {
  Channel channel(Ways::write_only);
  Pieces old(kMiB, 1, 0x11), fresh(kMiB, 1, 0x44), to(kMiB, 1, 0x22);
  RemoteKey first, second;
  ck_assert_int_eq(channel.out.share(old.iov, 1, kMiB, first), 0);
  channel.out.revoke(first);
  ck_assert_int_eq(channel.out.share(fresh.iov, 1, kMiB, second), 0);
  channel.shared_keys.push_back(second);
  ck_assert_int_eq(channel.in.start(first, to.iov, 1, kMiB, 1), 0);
  channel.run();
  assert_done_once(channel.sink, 1, -FI_ECANCELED);
  ck_assert_uint_eq(channel.out_counters.cma_write_bytes, 0);
}

/// Writes nonsense over the shared words that the other side writes.
void scramble(BulkShared& page, std::minstd_rand& random, bool receivers_words) {
  const auto word = [&random]() -> uint64_t {
    const uint64_t a = random(), b = random();
    switch (random() % 4) {
      case 0:
        return a << 33 ^ b;
      case 1:
        return a % 8 << 32 | b % 40;  // plausible generation and count
      case 2:
        return UINT64_MAX - b % 3;
      default:
        return b % 5;
    }
  };
  const size_t ticket = random() % kTickets;
  constexpr auto relaxed = std::memory_order_relaxed;
  if (!receivers_words) {
    SharedWord* const words[] = {&page.write_state, &page.produced, &page.progress[ticket].claim,
                                 &page.progress[ticket].done, &page.progress[ticket].stop};
    words[random() % std::size(words)]->store(word(), relaxed);
    return;
  }
  Ticket& body = page.ticket[ticket];
  SharedWord* const words[] = {&body.remote_key, &body.begin,
                               &body.end,        &body.base,
                               &body.chunks,     &body.iov[random() % kMaxIov].length,
                               &page.consumed,   &page.progress[ticket].claim,
                               &body.state};
  const size_t which = random() % std::size(words);
  words[which]->store(word(), relaxed);
  if (random() % 2 == 0)
    page.ticket[ticket].state.store(
        pack(TicketState{uint32_t(random()), Mode(random() % 7), Streaming::none, random() % 2 == 0,
                         uint8_t(random())}),
        relaxed);
}

TEST(receiver_survives_a_sender_that_writes_nonsense, 10 * int(std::size(kWays))) {
  std::minstd_rand random(unsigned(_i) + 1);
  Channel channel(kWays[size_t(_i) % std::size(kWays)]);
  std::vector<std::unique_ptr<Message>> messages;
  for (uint64_t token = 0; token < 12; ++token)
    messages.push_back(std::make_unique<Message>(channel, kMiB, token));
  for (int i = 0; i < 3000; ++i) {
    scramble(channel.page(), random, false);
    channel.in.poll(channel.sink);
    if (random() % 4 != 0) channel.out.poll();
  }
  channel.in.cancel(channel.sink, -FI_ECONNRESET);
  for (const auto& message : messages) {
    ck_assert_uint_eq(channel.sink.done[message->token].size(), 1);
    ck_assert_uint_eq(message->to.gaps_changed(0x22), 0);
  }
}

TEST(sender_survives_a_receiver_that_writes_nonsense, 10 * int(std::size(kWays))) {
  std::minstd_rand random(unsigned(_i) + 1);
  Channel channel(kWays[size_t(_i) % std::size(kWays)]);
  // The fake kernel would write to any address in a ticket, also in this process; so each write
  // fails.
  channel.calls.write.first = 1;
  channel.calls.write.last = fake::CmaCalls::kForever;
  channel.calls.write.error = EFAULT;
  std::vector<std::unique_ptr<Message>> messages;
  for (uint64_t token = 0; token < 12; ++token)
    messages.push_back(std::make_unique<Message>(channel, kMiB, token));
  for (int i = 0; i < 3000; ++i) {
    scramble(channel.page(), random, true);
    channel.out.poll();
    if (random() % 8 == 0) channel.in.poll(channel.sink);
    if (i % 500 == 499) channel.out.revoke(messages[size_t(i) / 500]->remote_key);
  }
  channel.in.cancel(channel.sink, -FI_ECONNRESET);
}

// ---- two threads
// ---------------------------------------------------------------------------------

void run_on_two_threads(Channel& channel, size_t messages_, size_t length) {
  std::vector<std::unique_ptr<Message>> messages;
  for (uint64_t token = 0; token < messages_; ++token)
    messages.push_back(std::make_unique<Message>(channel, length + token, token));
  std::atomic<bool> over{false};
  std::thread sender([&] {
    while (!over.load(std::memory_order_acquire)) {
      if (channel.out.poll() == 0) std::this_thread::yield();
    }
  });
  while (channel.in.active())
    if (channel.in.poll(channel.sink) == 0) std::this_thread::yield();
  over.store(true, std::memory_order_release);
  sender.join();
  for (const auto& message : messages) {
    assert_done_once(channel.sink, message->token, 0);
    ck_assert(message->arrived());
  }
}

TEST(two_threads_move_every_byte_in_every_way, 3 * int(std::size(kWays))) {
  const size_t lengths[] = {60 * kKiB, kMiB, 3 * kMiB + 5};
  Channel channel(kWays[size_t(_i) % std::size(kWays)]);
  run_on_two_threads(channel, 8, lengths[size_t(_i) / std::size(kWays)]);
}

TEST(two_threads_survive_faults_on_both_sides, std::size(kFaults)) {
  const Fault& fault = kFaults[_i];
  Channel channel(Ways::dual);
  plan(channel.calls.read, fault, 5);
  plan(channel.calls.write, fault, 3);
  run_on_two_threads(channel, 8, kMiB);
}

TEST(a_sender_that_left_before_it_attached_spoils_a_read_under_way) {
  Channel channel(Ways::dual, false);
  Message message(channel, 1 << 20);
  channel.memory.left = true;
  for (int i = 0; i < kManyPolls && channel.in.active(); ++i) channel.in.poll(channel.sink);
  assert_done_once(channel.sink, message.token, -FI_ECANCELED);
}

/// The store of such a stop may have been delayed since that generation.
TEST(a_stop_of_an_older_generation_means_nothing) {
  Channel channel(Ways::dual);
  BulkShared& page = shared_page(channel.shared);
  Message first(channel, kMiB);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  channel.sink.done.clear();
  Message second(channel, 3 * kMiB);
  channel.in.poll(channel.sink);
  const uint32_t now = unpack_state(page.ticket[0].state.load()).generation;
  ck_assert_uint_gt(now, 1);
  for (const uint8_t error : {uint8_t(ECANCELED), uint8_t(EPROTO), uint8_t(EFAULT)}) {
    page.progress[0].stop.store(pack(Stop{now - 1, Stop::kNoChunk, error}));
    channel.in.poll(channel.sink);
    ck_assert(channel.in.active());
  }
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert(second.arrived());
}

/// A word that no honest peer writes ends a transfer, and keeps nobody from sleeping.
TEST(a_ticket_with_bits_that_mean_nothing_keeps_no_sender_awake) {
  Channel channel(Ways::dual);
  BulkShared& page = shared_page(channel.shared);
  while (channel.out.poll()) continue;
  page.ticket[0].state.store(pack(TicketState{1, Mode::read_only}) | uint64_t{1} << 20);
  ck_assert(channel.out.ready());
  channel.out.poll();
  ck_assert(!channel.out.ready());
}

TEST(a_sender_that_stops_with_a_claim_keeps_no_receiver_awake) {
  Channel channel(Ways::dual);
  Message message(channel, 4 * kMiB);
  channel.in.poll(channel.sink);
  TicketProgress& progress = shared_page(channel.shared).progress[0];
  Claims claims = unpack_claims(progress.claim.load());
  ++claims.back;
  progress.claim.store(pack(claims));
  progress.stop.store(pack(Stop{claims.generation, Stop::kNoChunk, EFAULT}));
  for (int i = 0; i < 100 && channel.in.active(); ++i) channel.in.poll(channel.sink);
  assert_done_once(channel.sink, 7, -EPROTO);
}

}  // namespace

}  // namespace erdma::transport::shm
