#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "libcheck.h"
#include "protocol/match.h"

/// Entries for the tests of the matcher, and a model that checks every call.
namespace erdma::protocol::test {

// A constant mask, as Open MPI sets it in every receive.
inline constexpr uint64_t kProtocolBits = uint64_t{3} << 60;

// Peers are compared by address only.
inline const Peer* peer(size_t i) {
  return reinterpret_cast<const Peer*>((i + 1) * 4096);
}

struct Receive : PostedEntry {
  Receive(const Peer* from, uint64_t wanted, uint64_t mask = 0) noexcept {
    source = from;
    tag = wanted;
    ignore = mask;
  }
};

struct Message : UnexpectedEntry {
  Message(const Peer* from, uint64_t carried) noexcept {
    source = from;
    tag = carried;
  }
};

inline PostedEntry* deliver(Matcher& matcher, Message& message) {
  PostedEntry* receive = matcher.arrive(*message.source, message.tag);
  if (!receive) matcher.queue(message);
  return receive;
}

/// Does what the matcher does by scanning its own copies, oldest first.
class Oracle {
 public:
  struct Copy {
    const void* entry;
    const Peer* source;
    uint64_t tag, ignore;
    const void* context;
    bool sticky;
  };
  using Copies = std::vector<Copy>;

  static bool match(const Copy& receive, const Peer* source, uint64_t tag) {
    for (int bit = 0; bit < 64; ++bit) {
      const bool ignored = receive.ignore >> bit & 1;
      if (!ignored && (receive.tag >> bit & 1) != (tag >> bit & 1)) return false;
    }
    return !receive.source || receive.source == source;
  }
  const void* find(const Copy& receive) const {
    for (const Copy& message : unexpected)
      if (match(receive, message.source, message.tag)) return message.entry;
    return nullptr;
  }
  const void* arrive(const Peer* source, uint64_t tag) {
    for (const Copy& receive : posted) {
      if (!match(receive, source, tag)) continue;
      const void* found = receive.entry;
      if (!receive.sticky) forget(posted, found);
      return found;
    }
    return nullptr;
  }
  const void* with_context(const void* context) const {
    for (const Copy& receive : posted)
      if (receive.context == context) return receive.entry;
    return nullptr;
  }
  static void forget(Copies& copies, const void* entry) {
    copies.erase(std::find_if(copies.begin(), copies.end(),
                              [&](const Copy& copy) { return copy.entry == entry; }));
  }

  Copies posted, unexpected;
};

struct Mix {
  uint32_t tags;   // number of different tags
  uint32_t masks;  // number of different masks, besides none
  uint32_t peers;
  uint32_t failures;  // percent of allocations that fail
};
/// Runs a Matcher and the Oracle side by side on random calls.
class Model {
 public:
  Model(const Mix& mix, uint32_t seed, bool& out_of_memory)
      : x_mix(mix), x_random(seed), x_out_of_memory(out_of_memory) {}
  ~Model() {
    while (PostedEntry* entry = x_matcher.first_posted()) revoke(*entry);
    while (UnexpectedEntry* entry = x_matcher.first_unexpected()) revoke(*entry);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // The favour changes so that both queues grow long and drain again and again.
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (i % 500 == 0) x_favour = pick(3);
      x_out_of_memory = pick(100) < x_mix.failures;
      step();
      x_out_of_memory = false;
      if (i % 97 == 0) compare_order();
    }
    compare_order();
  }
  size_t longest() const { return x_longest; }

 private:
  uint32_t pick(uint32_t below) { return uint32_t(x_random() % below); }
  uint64_t random_tag() { return uint64_t{pick(x_mix.tags)} << 20 | uint64_t{pick(4)} << 60; }
  const Peer* random_peer() { return peer(pick(x_mix.peers)); }
  uint64_t random_mask() {
    const uint32_t i = pick(x_mix.masks + 1);
    return i == 0 ? 0 : kProtocolBits | uint64_t{i - 1} << (pick(200) ? 40 : 20);
  }

  void step() {
    const uint32_t action = pick(20);
    if (action < 16) {
      const bool posts = x_favour == 2 ? action < 8 : (action < 15) == (x_favour == 0);
      posts ? post() : arrive();
    } else if (action == 16) {
      find();
    } else if (action == 17) {
      cancel();
    } else if (action == 18 && x_favour == 2) {
      remove_any(x_oracle.posted);
    } else if (action == 19 && x_favour == 2) {
      remove_any(x_oracle.unexpected);
    }
    x_longest = std::max({x_longest, x_oracle.posted.size(), x_oracle.unexpected.size()});
  }

  Oracle::Copy random_receive() {
    const bool directed = pick(2);
    return {nullptr,
            directed ? random_peer() : nullptr,
            random_tag(),
            random_mask(),
            reinterpret_cast<const void*>(uintptr_t{pick(50)} + 1),
            pick(10) == 0};
  }

  void post() {
    Oracle::Copy copy = random_receive();
    auto* receive = new Receive(copy.source, copy.tag, copy.ignore);
    receive->context = const_cast<void*>(copy.context);
    receive->sticky = copy.sticky;
    const void* expected = x_oracle.find(copy);
    UnexpectedEntry* message = x_matcher.post(*receive);
    ck_assert_ptr_eq(message, expected);
    if (message) {
      Oracle::forget(x_oracle.unexpected, expected);
      delete static_cast<Message*>(message);
      delete receive;
    } else {
      copy.entry = static_cast<PostedEntry*>(receive);
      x_oracle.posted.push_back(copy);
    }
  }

  void arrive() {
    auto* message = new Message(random_peer(), random_tag());
    const void* expected = x_oracle.arrive(message->source, message->tag);
    PostedEntry* receive = deliver(x_matcher, *message);
    ck_assert_ptr_eq(receive, expected);
    if (!receive) {
      x_oracle.unexpected.push_back({static_cast<UnexpectedEntry*>(message), message->source,
                                     message->tag, 0, nullptr, false});
      return;
    }
    delete message;
    if (!receive->sticky) delete static_cast<Receive*>(receive);
  }

  void find() {
    const Oracle::Copy wanted = random_receive();
    ck_assert_ptr_eq(x_matcher.find(wanted.source, wanted.tag, wanted.ignore),
                     x_oracle.find(wanted));
  }

  void cancel() {
    const void* context = random_receive().context;
    PostedEntry* entry = x_matcher.posted_with_context(context);
    ck_assert_ptr_eq(entry, x_oracle.with_context(context));
    if (!entry) return;
    Oracle::forget(x_oracle.posted, entry);
    revoke(*entry);
  }

  void remove_any(Oracle::Copies& copies) {
    if (copies.empty()) return;
    void* entry = const_cast<void*>(copies[pick(uint32_t(copies.size()))].entry);
    Oracle::forget(copies, entry);
    if (&copies == &x_oracle.posted) {
      revoke(*static_cast<PostedEntry*>(entry));
    } else {
      revoke(*static_cast<UnexpectedEntry*>(entry));
    }
  }

  void revoke(PostedEntry& entry) {
    x_matcher.remove(entry);
    delete static_cast<Receive*>(&entry);
  }
  void revoke(UnexpectedEntry& entry) {
    x_matcher.remove(entry);
    delete static_cast<Message*>(&entry);
  }

  void compare_order() {
    ck_assert_uint_eq(x_matcher.posted_count(), x_oracle.posted.size());
    ck_assert_uint_eq(x_matcher.unexpected_count(), x_oracle.unexpected.size());
    PostedEntry* receive = x_matcher.first_posted();
    for (const auto& copy : x_oracle.posted) {
      ck_assert_ptr_eq(receive, copy.entry);
      receive = x_matcher.next_posted(*receive);
    }
    ck_assert_ptr_null(receive);
    UnexpectedEntry* message = x_matcher.first_unexpected();
    for (const auto& copy : x_oracle.unexpected) {
      ck_assert_ptr_eq(message, copy.entry);
      message = x_matcher.next_unexpected(*message);
    }
    ck_assert_ptr_null(message);
  }

  const Mix x_mix;
  std::mt19937 x_random;
  bool& x_out_of_memory;  // set while allocations are to fail
  Matcher x_matcher;
  Oracle x_oracle;
  uint32_t x_favour = 0;  // 0 = receives, 1 = messages, 2 = balanced
  size_t x_longest = 0;
};

}  // namespace erdma::protocol::test
