#include "protocol/match.h"

#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

#include "libcheck.h"
#include "protocol/match_model.h"

namespace {
bool g_out_of_memory = false;
size_t g_array_bytes = 0;  // bytes of the indexes' tables, which are nothrow arrays

}  // namespace

// The matcher allocates only by nothrow new[], so these functions count all its memory. The same
// delete[] also frees arrays of the throwing new[].
void* operator new[](size_t size) {
  void* memory = std::malloc(size);
  if (!memory) throw std::bad_alloc();
  g_array_bytes += malloc_usable_size(memory);
  return memory;
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  void* memory = g_out_of_memory ? nullptr : std::malloc(size);
  if (memory) g_array_bytes += malloc_usable_size(memory);
  return memory;
}
void operator delete[](void* memory) noexcept {
  if (memory) g_array_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  operator delete[](memory);
}

namespace {

using namespace erdma::protocol::test;
using erdma::protocol::Matcher;
using erdma::protocol::Peer;
using erdma::protocol::PostedEntry;
using erdma::protocol::UnexpectedEntry;

// Numbers of receives without a match, ahead of the ones that a test uses. Queues become hashed
// between 0 and 1000.
constexpr size_t kFillers[] = {0, 1, 15, 16, 17, 100, 1000};

class Crowd {
 public:
  explicit Crowd(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      x_receives.push_back(std::make_unique<Receive>(i % 2 ? peer(50) : nullptr, kFar + i));
      x_messages.push_back(std::make_unique<Message>(peer(51), kFar + 100'000 + i));
    }
  }
  void post(Matcher& matcher) {
    for (const auto& receive : x_receives) ck_assert_ptr_null(matcher.post(*receive));
  }
  void arrive(Matcher& matcher) {
    for (const auto& message : x_messages) ck_assert_ptr_null(deliver(matcher, *message));
  }

 private:
  static constexpr uint64_t kFar = uint64_t{1} << 40;
  std::vector<std::unique_ptr<Receive>> x_receives;
  std::vector<std::unique_ptr<Message>> x_messages;
};

TEST(receive_takes_a_message_exactly_when_tag_and_source_agree) {
  const struct {
    const Peer* source;
    uint64_t tag, ignore;
    bool match;
  } cases[] = {{nullptr, 5, 0, true},
               {peer(1), 5, 0, true},
               {peer(2), 5, 0, false},
               {nullptr, 4, 0, false},
               {nullptr, 4, 1, true},
               {nullptr, 4, 2, false},
               {peer(1), ~0ull, ~0ull, true},
               {peer(2), 5, ~0ull, false},
               {nullptr, 5 | kProtocolBits, kProtocolBits, true}};
  for (const size_t fillers : kFillers) {
    for (const auto& c : cases) {
      Crowd crowd(fillers);
      Matcher matcher;
      crowd.post(matcher);
      Receive receive(c.source, c.tag, c.ignore);
      ck_assert_ptr_null(matcher.post(receive));
      ck_assert_ptr_eq(matcher.arrive(*peer(1), 5), c.match ? &receive : nullptr);
      ck_assert_uint_eq(matcher.posted_count(), fillers + !c.match);
    }
  }
}

TEST(message_waits_exactly_until_tag_and_source_agree) {
  for (const size_t fillers : kFillers) {
    Crowd crowd(fillers);
    Matcher matcher;
    crowd.arrive(matcher);
    Message message(peer(1), 5);
    ck_assert_ptr_null(deliver(matcher, message));
    Receive stranger(peer(2), 5), other(nullptr, 4), masked(nullptr, 4, 1);
    ck_assert_ptr_null(matcher.post(stranger));
    ck_assert_ptr_null(matcher.post(other));
    ck_assert_ptr_eq(matcher.post(masked), &message);
    ck_assert_uint_eq(matcher.unexpected_count(), fillers);
    ck_assert_uint_eq(matcher.posted_count(), 2);
  }
}

// libfabric's util_srx computes wrong pointers in this mix.
TEST(directed_and_any_source_receives_match_in_posting_order) {
  for (const size_t fillers : kFillers) {
    Crowd crowd(fillers);
    Matcher matcher;
    crowd.post(matcher);
    Receive first(nullptr, 1), second(peer(1), 1), third(nullptr, 1), fourth(peer(2), 1),
        fifth(peer(1), 0, ~uint64_t{0} >> 32);
    for (Receive* receive : {&first, &second, &third, &fourth, &fifth})
      ck_assert_ptr_null(matcher.post(*receive));
    ck_assert_ptr_eq(matcher.arrive(*peer(2), 1), &first);
    ck_assert_ptr_eq(matcher.arrive(*peer(2), 1), &third);
    ck_assert_ptr_eq(matcher.arrive(*peer(1), 1), &second);
    ck_assert_ptr_eq(matcher.arrive(*peer(1), 1), &fifth);
    ck_assert_ptr_null(matcher.arrive(*peer(1), 1));
    ck_assert_ptr_eq(matcher.arrive(*peer(2), 1), &fourth);
    ck_assert_uint_eq(matcher.posted_count(), fillers);
  }
}

TEST(directed_and_any_source_receives_take_messages_in_arrival_order) {
  for (const size_t fillers : kFillers) {
    Crowd crowd(fillers);
    Matcher matcher;
    crowd.arrive(matcher);
    Message first(peer(1), 1), second(peer(2), 1), third(peer(1), 1), fourth(peer(2), 1);
    for (Message* message : {&first, &second, &third, &fourth})
      ck_assert_ptr_null(deliver(matcher, *message));
    Receive directed(peer(2), 1), any(nullptr, 1), masked(peer(1), 0, 1);
    ck_assert_ptr_eq(matcher.post(directed), &second);
    ck_assert_ptr_eq(matcher.post(any), &first);
    ck_assert_ptr_eq(matcher.post(directed), &fourth);
    ck_assert_ptr_eq(matcher.post(masked), &third);
    ck_assert_ptr_null(matcher.post(any));
  }
}

TEST(sticky_receive_stays_and_keeps_its_turn) {
  for (const size_t fillers : kFillers) {
    Crowd crowd(fillers);
    Matcher matcher;
    crowd.post(matcher);
    Receive before(nullptr, 1), sticky(nullptr, 0, 1), after(nullptr, 1);
    sticky.sticky = true;
    for (Receive* receive : {&before, &sticky, &after}) ck_assert_ptr_null(matcher.post(*receive));
    ck_assert_ptr_eq(matcher.arrive(*peer(1), 1), &before);
    for (int i = 0; i < 3; ++i) ck_assert_ptr_eq(matcher.arrive(*peer(1), 1), &sticky);
    matcher.remove(sticky);
    ck_assert_ptr_eq(matcher.arrive(*peer(1), 1), &after);
  }
}

TEST(sticky_receive_is_not_queued_when_a_message_waits) {
  Matcher matcher;
  Message first(peer(1), 1), second(peer(1), 1);
  deliver(matcher, first);
  deliver(matcher, second);
  Receive sticky(nullptr, 1);
  sticky.sticky = true;
  ck_assert_ptr_eq(matcher.post(sticky), &first);
  ck_assert_uint_eq(matcher.posted_count(), 0);
  ck_assert_ptr_eq(matcher.post(sticky), &second);
  ck_assert_ptr_null(matcher.post(sticky));
  ck_assert_uint_eq(matcher.posted_count(), 1);
}

TEST(peek_leaves_the_message_in_place) {
  for (const size_t fillers : kFillers) {
    Crowd crowd(fillers);
    Matcher matcher;
    crowd.arrive(matcher);
    Message first(peer(1), 1), second(peer(1), 1);
    deliver(matcher, first);
    deliver(matcher, second);
    ck_assert_ptr_null(matcher.find(peer(2), 1, 0));
    for (int i = 0; i < 2; ++i) ck_assert_ptr_eq(matcher.find(peer(1), 1, 0), &first);
    matcher.remove(first);
    ck_assert_ptr_eq(matcher.find(nullptr, 0, 1), &second);
    ck_assert_uint_eq(matcher.unexpected_count(), fillers + 1);
  }
}

TEST(cancel_finds_the_oldest_receive_of_a_context) {
  Matcher matcher;
  int context = 0, other = 0;
  Receive first(nullptr, 1), second(nullptr, 2);
  first.context = second.context = &context;
  matcher.post(first);
  matcher.post(second);
  ck_assert_ptr_null(matcher.posted_with_context(&other));
  ck_assert_ptr_eq(matcher.posted_with_context(&context), &first);
  matcher.remove(first);
  ck_assert_ptr_eq(matcher.posted_with_context(&context), &second);
}

TEST(queue_can_be_emptied_while_walking) {
  for (const size_t fillers : kFillers) {
    Crowd crowd(fillers);
    Matcher matcher;
    crowd.post(matcher);
    crowd.arrive(matcher);  // every arrival searched all receives, so long queues are indexed
    ck_assert_ptr_null(matcher.find(peer(1), 0, 0));
    uint64_t last = 0;
    for (PostedEntry* entry = matcher.first_posted(); entry;) {
      PostedEntry* next = matcher.next_posted(*entry);
      ck_assert_uint_gt(uint64_t{entry->sequence}, last);
      last = entry->sequence;
      matcher.remove(*entry);
      entry = next;
    }
    for (UnexpectedEntry* entry = matcher.first_unexpected(); entry;) {
      UnexpectedEntry* next = matcher.next_unexpected(*entry);
      matcher.remove(*entry);
      entry = next;
    }
    ck_assert_uint_eq(matcher.posted_count() + matcher.unexpected_count(), 0);
  }
}

// How applications post receives: exact or with a constant mask of protocol bits, directed or from
// any source.
struct Path {
  uint64_t ignore;
  bool directed;
};
constexpr Path kWays[] = {{0, false}, {0, true}, {kProtocolBits, false}, {kProtocolBits, true}};

// Entries on pages of their own. A search that touches a protected page ends the process or is
// counted.
template <typename Entry>
class Pages {
 public:
  static constexpr size_t kCount = 1000;

  Pages() : x_page(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    x_memory = static_cast<std::byte*>(
        mmap(nullptr, kCount * x_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ck_assert_ptr_ne(x_memory, MAP_FAILED);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (s_counting == this) s_counting = nullptr;
    munmap(x_memory, kCount * x_page);
  }

  template <typename... Args>
  Entry& make(size_t i, Args... args) {
    return *new (x_memory + i * x_page) Entry(args...);
  }
  Entry& at(size_t i) { return *std::launder(reinterpret_cast<Entry*>(x_memory + i * x_page)); }

  // Unlinking writes to both neighbours. Each search reads the oldest entry, and the youngest to
  // find later ones.
  void allow_only_around(size_t i) {
    protect(0, kCount, PROT_NONE);
    protect(0, 1, PROT_READ | PROT_WRITE);
    protect(kCount - 1, 1, PROT_READ | PROT_WRITE);
    protect(i - 1, 3, PROT_READ | PROT_WRITE);
  }
  void allow_all() { protect(0, kCount, PROT_READ | PROT_WRITE); }

  // From now on, the first access to each protected page is counted, and permits further ones.
  void count_strays() {
    s_counting = this;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ck_assert_int_eq(sigaction(SIGSEGV, &action, nullptr), 0);
  }
  size_t strays() const { return x_strays; }

 private:
  static void on_fault(int, siginfo_t* info, void*) {
    Pages* pages = s_counting;
    auto* at = static_cast<std::byte*>(info->si_addr);
    if (!pages || at < pages->x_memory || at >= pages->x_memory + kCount * pages->x_page)
      _exit(139);
    ++pages->x_strays;
    const size_t page = static_cast<size_t>(at - pages->x_memory) / pages->x_page;
    mprotect(pages->x_memory + page * pages->x_page, pages->x_page, PROT_READ | PROT_WRITE);
  }
  void protect(size_t first, size_t count, int access) {
    ck_assert_int_eq(mprotect(x_memory + first * x_page, count * x_page, access), 0);
  }

  static inline Pages* s_counting = nullptr;
  size_t x_page;
  std::byte* x_memory;
  size_t x_strays = 0;
};

// Receives in the same bucket are read, too. On average, there is less than one.
TEST(arrival_touches_few_receives_but_its_own, std::size(kWays)) {
  const Path path = kWays[_i];
  Pages<Receive> receives;
  Matcher matcher;
  for (size_t i = 0; i < receives.kCount; ++i)
    matcher.post(receives.make(i, path.directed ? peer(i % 7) : nullptr, i, path.ignore));
  ck_assert_ptr_null(matcher.arrive(*peer(9), receives.kCount));
  receives.count_strays();
  size_t searches = 0;
  for (size_t i = receives.kCount - 2; i > 7; i -= 7, searches += 2) {
    receives.allow_only_around(i);
    ck_assert_ptr_null(matcher.arrive(*peer(9), receives.kCount + i));
    ck_assert_ptr_eq(matcher.arrive(*peer(i % 7), i), &receives.at(i));
    receives.allow_all();
  }
  ck_assert_uint_lt(receives.strays(), searches / 2);
}

TEST(receive_touches_no_message_but_its_own, std::size(kWays)) {
  const Path path = kWays[_i];
  Pages<Message> messages;
  Matcher matcher;
  for (size_t i = 0; i < messages.kCount; ++i) deliver(matcher, messages.make(i, peer(i % 7), i));
  ck_assert_ptr_null(matcher.find(path.directed ? peer(9) : nullptr, messages.kCount, path.ignore));
  for (size_t i = 500; i > 2; i = i * 2 / 3) {
    Receive receive(path.directed ? peer(i % 7) : nullptr, i, path.ignore);
    messages.allow_only_around(i);
    ck_assert_ptr_eq(matcher.post(receive), &messages.at(i));
    messages.allow_all();
  }
}

TEST(exact_receive_is_found_at_once_beside_many_masks) {
  Pages<Receive> receives;
  Matcher matcher;
  for (size_t i = 0; i < receives.kCount; ++i) {
    const bool masked = i > 0 && i <= 20;
    matcher.post(receives.make(i, nullptr, i << 32, masked ? uint64_t{1} << i : 0));
  }
  ck_assert_ptr_null(matcher.arrive(*peer(0), ~uint64_t{0}));
  receives.count_strays();
  receives.allow_only_around(500);
  for (size_t i = 1; i <= 20; ++i)  // receives with a mask beyond the eighth are scanned
    mprotect(&receives.at(i), sizeof(Receive), PROT_READ | PROT_WRITE);
  ck_assert_ptr_eq(matcher.arrive(*peer(0), uint64_t{500} << 32), &receives.at(500));
  receives.allow_all();
  ck_assert_uint_le(receives.strays(), 11);  // at most one of the same chain in each index
}

TEST(empty_queues_keep_little_memory) {
  const size_t before = g_array_bytes;
  Matcher matcher;
  Crowd crowd(20'000);
  crowd.post(matcher);
  crowd.arrive(matcher);
  for (size_t i = 0; i < 20; ++i) ck_assert_ptr_null(matcher.find(nullptr, 0, i));
  ck_assert_uint_gt(g_array_bytes - before, 65536);
  while (PostedEntry* entry = matcher.first_posted()) matcher.remove(*entry);
  while (UnexpectedEntry* entry = matcher.first_unexpected()) matcher.remove(*entry);
  ck_assert_uint_le(g_array_bytes - before, 65536);
}

TEST(short_queues_allocate_nothing) {
  const size_t before = g_array_bytes;
  Matcher matcher;
  Crowd crowd(16);
  crowd.post(matcher);
  crowd.arrive(matcher);
  ck_assert_uint_eq(g_array_bytes, before);
}

TEST(in_order_matches_allocate_nothing_at_any_length) {
  const size_t before = g_array_bytes;
  Matcher matcher;
  std::vector<std::unique_ptr<Receive>> receives;
  for (uint64_t i = 0; i < 1000; ++i) {
    receives.push_back(std::make_unique<Receive>(nullptr, i, kProtocolBits));
    ck_assert_ptr_null(matcher.post(*receives.back()));
  }
  for (uint64_t i = 0; i < 1000; ++i)
    ck_assert_ptr_eq(matcher.arrive(*peer(1), i), receives[i].get());
  ck_assert_uint_eq(g_array_bytes, before);
}

// A selector that found no free index gets one after other selectors fell out of use.
TEST(unexpected_index_goes_to_the_selectors_in_use) {
  Pages<Message> messages;
  Matcher matcher;
  for (size_t i = 0; i < messages.kCount; ++i) deliver(matcher, messages.make(i, peer(0), i));
  for (uint64_t bit = 20; bit < 30; ++bit)
    ck_assert_ptr_null(matcher.find(nullptr, 5000, uint64_t{1} << bit));
  for (int i = 0; i < 3000; ++i)
    ck_assert_ptr_eq(matcher.find(nullptr, 500, kProtocolBits), &messages.at(500));
  messages.allow_only_around(500);
  ck_assert_ptr_eq(matcher.find(nullptr, 500, kProtocolBits), &messages.at(500));
  messages.allow_all();
  while (UnexpectedEntry* entry = matcher.first_unexpected()) matcher.remove(*entry);
  ck_assert_ptr_null(matcher.find(nullptr, 500, kProtocolBits));
}

constexpr Mix kMixes[] = {{400, 1, 3, 0},  {40, 3, 2, 0},    {1000, 6, 5, 0},
                          {400, 20, 3, 0}, {60, 40, 4, 0},   {2, 2, 2, 0},
                          {400, 3, 3, 50}, {400, 20, 3, 90}, {400, 3, 3, 100}};

TEST(matcher_agrees_with_a_scan_on_random_calls, std::size(kMixes)) {
  const char* const set = std::getenv("ERDMA_MODEL_RUNS");
  const uint64_t runs = set ? std::strtoull(set, nullptr, 0) : 3;
  for (uint32_t seed = 1; seed <= runs; ++seed) {
    Model model(kMixes[_i], seed, g_out_of_memory);
    model.run(10'000);
    ck_assert_uint_gt(model.longest(), 64);
  }
}

}  // namespace
