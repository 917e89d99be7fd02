#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "fake/refused_call.h"
#include "fake/shared_core.h"
#include "libcheck.h"
#include "transport/shm/fragment_limits.h"
#include "transport/shm/layout.h"
#include "transport/shm/link.h"
#include "transport/shm_pair.h"

/// Tests which messages a link prefers to send in packets.
namespace erdma::test {
namespace {

using transport::Link;
using transport::SendHint;
using transport::shm::kSlotPayload;

unsigned g_looks = 0;  ///< at whether others use the core of this thread

/// Sends until side b has given the link a hot ring. Returns the number of packets, all arrived.
uint64_t make_hot(Pair& pair) {
  Link& link = pair.a_to_b();
  uint64_t sent = 0;
  while (link.limits().eager <= kSlotPayload) {
    sent += pair.send(link, sent, nullptr, 0) == 0;
    pair.poll();
  }
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == sent; }));
  return sent;
}

/// Whether other tests take the core of this one shall not matter from now on.
void own_core(Link& link) {
  using transport::shm::CoreSharing;
  static_cast<transport::shm::ShmLink&>(link).context().core =
      CoreSharing([]() noexcept { return ++g_looks, CoreSharing::Usage{}; });
}

/// The link prefers no packets in a cold ring, for a receiver that has consumed nothing for long,
/// and for messages longer than FI_ERDMA_SHM_EAGER_SIZE.
TEST(a_link_prefers_packets_while_its_receiver_takes_them) {
  constexpr size_t kMost = 100'000, kPart = 8192;
  transport::shm::Options options;
  options.eager_bytes = kMost;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  Link& link = pair.a_to_b();
  ck_assert(!link.prefers_packets(20'000, true));
  uint64_t sent = make_hot(pair);
  own_core(link);
  ck_assert(link.prefers_packets(20'000, true) && link.prefers_packets(kMost, true));
  ck_assert(!link.prefers_packets(kMost + 1, true));
  const std::vector<char> part(kPart);
  const iovec iov{const_cast<char*>(part.data()), kPart};
  while (link.send(numbered(sent), &iov, 1, kPart, SendHint::none) == 0) ++sent;
  unsigned refused = 0;
  while (link.prefers_packets(kMost, true)) ++refused;
  ck_assert(refused > 100 && g_looks == 0);  // it is one message that waits
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == sent; }));
  ck_assert(link.prefers_packets(kMost, true));
}

/// In a ring where the bytes of a message fit, but not the gaps between its packets, it waits as in
/// a full one.
TEST(a_message_in_packets_needs_room_for_the_gaps_between_them) {
  using namespace transport::shm;
  constexpr size_t kMost = FragmentLimits::kCopied.message, kPart = 8192;
  constexpr uint32_t kGaps = kMost / kPart * kPayloadGap;
  Options options;
  options.cma = false;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  auto& link = static_cast<ShmLink&>(pair.a_to_b());
  uint64_t sent = make_hot(pair);
  own_core(link);
  RingSender& ring = *link.out().hot_ring();
  const std::vector<char> part(kPart);
  const iovec iov{const_cast<char*>(part.data()), kPart};
  for (; ring.room_for_bytes(kMost + kGaps); ++sent)
    ck_assert_int_eq(link.send(numbered(sent), &iov, 1, kPart, SendHint::none), 0);
  ck_assert(ring.room_for_bytes(kMost));
  unsigned waits = 0;
  while (waits <= RingSender::kPatience && link.prefers_packets(kMost, true)) ++waits;
  ck_assert_uint_le(waits, RingSender::kPatience);
}

/// A message that is longer than permitted is a rendezvous even if a packet has room for it.
TEST(no_packet_is_longer_than_the_user_permits) {
  transport::shm::Options options;
  options.eager_bytes = 10'000;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  Link& link = pair.a_to_b();
  make_hot(pair);
  own_core(link);
  ck_assert_uint_eq(link.limits().eager, options.eager_bytes);
  ck_assert(link.prefers_packets(options.eager_bytes, true));
  ck_assert(!link.prefers_packets(options.eager_bytes + 1, true));
}

/// What a thread sees that runs for no time, and loses its core twice between two looks.
transport::shm::CoreSharing::Usage crowded() noexcept {
  static uint64_t forced = 0;
  return {{}, forced += transport::shm::CoreSharing::kForced, 0, 0};
}

/// Where CMA is refused, messages that are likely to find their receive posted may be longer.
TEST(without_cma_a_link_prefers_packets_for_longer_messages) {
  using transport::shm::FragmentLimits;
  constexpr size_t kMost = FragmentLimits::kCopied.message;
  transport::shm::Options options;
  options.cma = false;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  make_hot(pair);
  own_core(link);
  ck_assert(link.prefers_packets(kMost, true) && !link.prefers_packets(kMost, false));
  ck_assert(!link.prefers_packets(kMost + 1, true));
  transport::shm::CoreSharing shared(crowded);
  shared.judge(1'000'000'000);
  shared.judge(2'000'000'000);
  ck_assert(shared.shared());
  link.context().core = shared;
  ck_assert(link.prefers_packets(FragmentLimits::kCopiesPay.message, false));
}

/// The receiver tells its sender how fast it takes long payloads, after the first few.
TEST(a_sender_learns_how_fast_its_receiver_takes_long_payloads) {
  constexpr size_t kPart = 8192, kFew = 16;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  uint64_t sent = make_hot(pair);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  const std::vector<char> part(kPart);
  const iovec iov{const_cast<char*>(part.data()), kPart};
  ck_assert_uint_eq(link.out().hot_ring()->take_rate(), 0);
  for (size_t i = 0; i < kFew; ++i, ++sent) {
    ck_assert_int_eq(link.send(numbered(sent), &iov, 1, kPart, SendHint::none), 0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == sent + 1; }));
  }
  ck_assert_uint_gt(link.out().hot_ring()->take_rate(), 0);
}

/// Until the byte ring has got its memory.
void warm(Pair& pair, Link& link, uint64_t& sent) {
  constexpr size_t kPart = 8192;
  const std::vector<char> part(kPart);
  const iovec iov{const_cast<char*>(part.data()), kPart};
  for (size_t bytes = 0; bytes < transport::shm::kWarm;) {
    if (link.send(numbered(sent), &iov, 1, kPart, SendHint::none) == 0) ++sent, bytes += kPart;
    pair.poll();
  }
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == sent; }));
}

bool may_read(transport::shm::ShmLink& link) {
  return link.direct().peer().read.permission == transport::shm::Permission::allowed;
}

/// Packets on new pages would look slow, and the rendezvous that follow would keep them new.
TEST(a_message_that_reaches_new_pages_is_not_timed) {
  constexpr size_t kLength = 40'000, kPart = 8192;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  uint64_t sent = make_hot(pair);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  own_core(link);
  warm(pair, link, sent);
  const std::vector<char> part(kPart);
  const iovec iov{const_cast<char*>(part.data()), kPart};
  auto& timer = link.context().fragments;
  unsigned timed = 0, untimed = 0;
  for (size_t bytes = 0; bytes < 2 * transport::shm::kByteRing; bytes += kPart, ++sent) {
    ck_assert_int_eq(link.send(numbered(sent), &iov, 1, kPart, SendHint::none), 0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == sent + 1; }));
    const bool is_new = link.out().hot_ring()->reaches_new_pages(kLength);
    const bool packets = link.prefers_packets(kLength, true);
    if (!packets) continue;
    if (is_new) ck_assert(!timer.times(&link)), ++untimed;
    if (!is_new) timed += timer.times(&link);
  }
  ck_assert_uint_gt(untimed, transport::shm::WayChoice::kTimedEvery);
  if (may_read(link)) ck_assert_uint_gt(timed, 0);
}

/// Rows: the rest of the ring gets memory, or there is none.
TEST(a_sender_uses_the_rest_of_a_ring_once_it_has_memory, 2) {
  constexpr size_t kPart = 8192;
  constexpr unsigned kPopulateWrite = 23;
  using transport::shm::kByteRing;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  uint64_t sent = make_hot(pair);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  own_core(link);
  if (_i) {
    fake::refuse_call(SYS_fallocate, ENOMEM);
    fake::refuse_call(SYS_madvise, ENOMEM, 2, kPopulateWrite);
  }
  const std::vector<char> part(kPart);
  const iovec iov{const_cast<char*>(part.data()), kPart};
  for (size_t bytes = 0; bytes < 8 * kByteRing; bytes += kPart, ++sent) {
    ck_assert_int_eq(link.send(numbered(sent), &iov, 1, kPart, SendHint::none), 0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == sent + 1; }));
  }
  ck_assert_int_eq(link.out().hot_ring()->room_for_bytes(transport::shm::kBackedBytes), !_i);
}

struct TrialCase {
  bool cma;
  size_t shared;  ///< bytes that the receiver has yet to fetch
  transport::shm::PathPolicy paths;
  bool tries;
};
constexpr TrialCase kTrialCases[] = {
    {true, 0, transport::shm::PathPolicy::measure, true},
    {true, 128 * 1024, transport::shm::PathPolicy::measure, true},
    {true, 128 * 1024 + 1, transport::shm::PathPolicy::measure, false},
    {true, 0, transport::shm::PathPolicy::cma, false},
    {false, 0, transport::shm::PathPolicy::measure, false},
};

/// Where both ways are possible, the link tries a rendezvous, but only after the byte ring has got
/// its memory, for no short message, and for none that would wait for a long one.
TEST(a_link_tries_a_rendezvous_for_messages_of_medium_length, std::size(kTrialCases)) {
  using transport::shm::WayChoice;
  const TrialCase& c = kTrialCases[_i];
  transport::shm::Options options;
  options.cma = c.cma;
  options.paths = c.paths;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  uint64_t sent = make_hot(pair);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  const auto rendezvous = [&](size_t length) {
    unsigned found = 0;
    for (unsigned i = 0; i < WayChoice::kFirstPause; ++i)
      found += !link.prefers_packets(length, true);
    return found;
  };
  ck_assert_uint_eq(rendezvous(40'000), 0);
  warm(pair, link, sent);
  own_core(link);
  const std::vector<char> memory(c.shared);
  const iovec shared{const_cast<char*>(memory.data()), memory.size()};
  transport::RemoteKey key;
  if (c.shared)
    ck_assert_int_eq(link.share(&shared, 1, c.shared, transport::Access::refusable_read, key), 0);
  ck_assert_uint_eq(rendezvous(40'000), c.tries && may_read(link) ? WayChoice::kFirstTrials : 0);
  if (c.shared) {
    ck_assert_int_eq(link.revoke(key), 0);
    ck_assert_uint_gt(rendezvous(40'000), 0);
  }
}

/// Where the core is shared, messages to three peers between two polls go by rendezvous.
TEST(a_burst_on_a_shared_core_goes_by_rendezvous, 4) {
  const bool shared_core = _i % 2;
  const size_t length = _i / 2 ? 65'536 : 16'385;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  make_hot(pair);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  auto& context = link.context();
  own_core(link);
  if (shared_core) transport::shm::share(context.core);
  const bool packets = !shared_core || !may_read(link) ||
                       context.fragment_limits.limits(true, true, length).of_burst > length;
  (void)context.bursts.add(&shared_core, context.polls);
  ck_assert(link.prefers_packets(length, true));
  (void)context.bursts.add(&length, context.polls);
  for (const bool expected : {packets, packets, true}) {
    ck_assert_int_eq(link.prefers_packets(length, true), expected);
    pair.poll();
  }
}

struct TurnCase {
  size_t length;
  bool answers;  ///< the peer, each time
  bool tries;
};
constexpr TurnCase kTurnCases[] = {
    {8'193, true, true},   {32'768, true, true},   {32'769, true, true},  {8'192, true, false},
    {8'193, false, false}, {32'768, false, false}, {32'769, false, true},
};

/// Up to 32 KiB the link tries a rendezvous only where the sides take turns.
TEST(shorter_messages_are_tried_by_a_rendezvous_in_turns, std::size(kTurnCases)) {
  using transport::shm::WayChoice;
  const TurnCase& c = kTurnCases[_i];
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  uint64_t sent = make_hot(pair);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  warm(pair, link, sent);
  own_core(link);
  ck_assert_uint_eq(link.limits().asks_above, may_read(link) ? 8192 : SIZE_MAX);
  const bool fast = link.context().fragment_limits.calls_are_fast();
  unsigned tried = 0;
  size_t answers = 0;
  for (unsigned i = 0; i < WayChoice::kFirstPause; ++i) {
    const bool packets = link.prefers_packets(c.length, true);
    tried += !packets;
    if (!c.answers) continue;
    if (i == 1 && may_read(link)) ck_assert_int_eq(packets, c.length <= 32'768 || !fast);
    ++answers;
    ck_assert(pair.poll_until([&] { return pair.send(pair.b_to_a(), answers, nullptr, 0) == 0; }));
    ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == answers; }));
  }
  ck_assert_uint_eq(tried > 0, c.tries && may_read(link));
}

/// From now on the link's endpoint takes calls of the kernel for fast, whatever they are here.
void make_calls_fast(transport::shm::ShmLink& link) {
  static transport::shm::Options options;
  options = link.context().options;
  options.paths = transport::shm::PathPolicy::cma;  // as if the user had said so to this part alone
  transport::shm::FragmentLimits& limits = link.context().fragment_limits;
  std::destroy_at(&limits);
  std::construct_at(&limits, options, link.context().calls, link.context().clock);
  ck_assert(limits.calls_are_fast());
}

/// A pair whose link from side a has a ring with memory, a core of its own, and fast calls.
struct FastPair {
  FastPair() {
    ck_assert(open_side(pair.a) && open_side(pair.b));
    sent = make_hot(pair);
    warm(pair, link(), sent);
    own_core(link());
    make_calls_fast(link());
  }
  transport::shm::ShmLink& link() { return static_cast<transport::shm::ShmLink&>(pair.a_to_b()); }
  /// False: no room.
  bool send(size_t length) {
    const iovec iov{memory.data(), length};
    if (link().send(numbered(sent), &iov, 1, length, SendHint::none) != 0) return false;
    return ++sent;
  }
  /// As if both sides had sent as much, or this one alone.
  void move(bool both_ways) {
    for (unsigned i = 0; i < 2 * transport::shm::Turns::kPatience * kWindowParts; ++i)
      if (both_ways && i % 2)
        link().turns().takes(kPart);
      else
        link().turns().sends(kPart);
    ck_assert_int_eq(link().turns().both_ways(), both_ways);
  }
  static constexpr size_t kPart = 8192, kWindowParts = transport::shm::Turns::kWindow / kPart;
  std::vector<char> memory = std::vector<char>(kPart);
  Pair pair;
  uint64_t sent = 0;
};

struct BothWaysCase {
  size_t length;
  bool peer_sends;  ///< as much
  size_t before;    ///< bytes in packets that the peer has not taken
  size_t shared;    ///< bytes that the peer has yet to read
  bool rendezvous;
};
constexpr size_t kUntilFull = SIZE_MAX;
constexpr BothWaysCase kBothWays[] = {
    {65'536, true, kUntilFull, 0, true},
    {65'536, false, kUntilFull, 0, false},
    {65'536, true, 73'728, 0, true},
    {65'536, true, 65'536, 0, false},
    {65'536, true, 0, 65'536, true},
    {65'536, true, 0, 262'144, false},
    {65'536, true, kUntilFull, 262'144, false},
    {65'536, false, 0, 65'536, false},
    {131'072, true, kUntilFull, 0, true},
    {131'072, true, 139'264, 0, true},
    {131'072, true, 65'536, 0, false},
    {16'385, true, kUntilFull, 0, true},
    {16'384, true, kUntilFull, 0, false},
    {16'385, true, 32'768, 0, true},
    {16'384, true, 32'768, 0, false},
    {16'385, true, 16'384, 0, false},
};

/// Of messages both ways, those behind others are a stream. They go by rendezvous, also if the ring
/// is full of packets, but not behind a long one.
TEST(streams_both_ways_go_by_rendezvous_if_calls_are_fast, std::size(kBothWays)) {
  const BothWaysCase& c = kBothWays[_i];
  FastPair fast;
  transport::shm::ShmLink& link = fast.link();
  const std::vector<char> memory(c.shared);
  const iovec shared{const_cast<char*>(memory.data()), memory.size()};
  transport::RemoteKey key;
  if (c.shared)
    ck_assert_int_eq(link.share(&shared, 1, c.shared, transport::Access::refusable_read, key), 0);
  for (size_t put = 0; put < c.before && fast.send(fast.kPart); put += fast.kPart) continue;
  fast.move(c.peer_sends);
  for (unsigned i = 0; i + 1 < transport::shm::WayChoice::kFirstTrial; ++i)
    ck_assert_int_eq(link.prefers_packets(c.length, true), !(c.rendezvous && may_read(link)));
  if (c.shared) ck_assert_int_eq(link.revoke(key), 0);
}

/// Rows: bytes of short packets in front of a message, and whether another message is there, too.
struct ShortCase {
  size_t length, packet;
  bool message;
};
constexpr ShortCase kShorts[] = {
    {65'536, 0, false}, {65'536, 200, false}, {65'536, 1000, false}, {65'536, 0, true},
    {20'480, 0, false}, {20'480, 200, false}, {20'480, 900, false},
};

/// Short packets in front do not make a stream.
TEST(a_message_behind_short_packets_is_no_stream, std::size(kShorts)) {
  const ShortCase& c = kShorts[_i];
  FastPair fast;
  for (unsigned i = 0; i < 5; ++i) warm(fast.pair, fast.link(), fast.sent);  // the rounds are whole
  fast.move(true);
  for (size_t put = 0; c.message && put < c.length; put += fast.kPart)
    ck_assert(fast.send(fast.kPart));
  for (unsigned i = 0; i < (c.message ? 1 : 10); ++i) ck_assert(fast.send(c.packet));
  ck_assert(fast.link().prefers_packets(c.length, true));
}

/// Another process may have the address next.
TEST(what_moved_is_forgotten_when_the_link_ends) {
  FastPair fast;
  fast.move(true);
  fast.link().take_down(*fast.pair.a.sink, -FI_ESHUTDOWN);
  ck_assert(!fast.link().turns().both_ways());
}

/// What moves counts on both sides, however it moves.
TEST(links_count_the_bytes_of_long_messages, 2) {
  using transport::shm::Turns;
  constexpr size_t kPart = 8192, kLong = 65'536;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  uint64_t sent = make_hot(pair);
  auto& there = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  auto& here = static_cast<transport::shm::ShmLink&>(pair.b_to_a());
  own_core(here);
  std::vector<char> memory(kLong), copy(kLong);
  const iovec part{memory.data(), kPart}, whole{memory.data(), kLong}, local{copy.data(), kLong};
  for (size_t bytes = 0; _i == 0 && bytes < Turns::kWindow / 2; bytes += kPart, ++sent)
    while (there.send(numbered(sent), &part, 1, kPart, SendHint::none) != 0) pair.poll();
  for (size_t bytes = 0; _i == 1 && bytes < Turns::kWindow / 2; bytes += kLong) {
    transport::RemoteKey key;
    ck_assert_int_eq(there.share(&whole, 1, kLong, transport::Access::refusable_read, key), 0);
    const size_t done = pair.b.sink->dones.size() + 1;
    int rc;
    ck_assert(pair.poll_until([&] {
      rc = here.get({key, 0, kLong}, &local, 1, 0);
      return rc != -FI_EAGAIN;
    }));
    ck_assert(rc == 0 || rc == transport::kDone);
    if (rc == 0) ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() == done; }));
    ck_assert_int_eq(there.revoke(key), 0);
  }
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == sent; }));
  ck_assert(!here.turns().both_ways() && !there.turns().both_ways());
  here.turns().sends(Turns::kWindow / 2);
  there.turns().takes(Turns::kWindow / 2);
  ck_assert(here.turns().both_ways() && there.turns().both_ways());
}

}  // namespace

}  // namespace erdma::test
