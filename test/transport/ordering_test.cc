#include "transport/shm/ordering.h"

#include "fake/weak_memory.h"
#include "libcheck.h"
#include "transport/shm/region_gate.h"

/// Model checks of the words in shared memory by which two processes synchronize, for every
/// processor that C++ describes.
namespace erdma::transport::shm {
namespace {

using fake::weak::Atomic;
using fake::weak::Model;
using fake::weak::NoOrder;
using fake::weak::Order;

constexpr auto kPlain = std::memory_order_relaxed;  ///< memcpy() and the kernel order nothing

// ---- bytes that a word hands over
// ----------------------------------------------------------------

struct Released {
  static void tell(Atomic<uint64_t>& word) { store_release(word, 1u); }
};
struct Orred {
  static void tell(Atomic<uint64_t>& word) { or_release(word, 1u); }
};
struct Exchanged {
  static void tell(Atomic<uint64_t>& word) { exchange_acq_rel(word, 1u); }
  static bool told(Atomic<uint64_t>& word) { return exchange_acq_rel(word, 2u) == 1; }
};
struct Compared {
  static void tell(Atomic<uint64_t>& word) {
    uint64_t seen = 0;
    compare_exchange_acq_rel(word, seen, uint64_t(1));
  }
  static bool told(Atomic<uint64_t>& word) {
    uint64_t seen = 1;
    return compare_exchange_acq_rel(word, seen, uint64_t(2));
  }
};
struct ComparedInVain {
  static bool told(Atomic<uint64_t>& word) {
    uint64_t seen = 7;
    return !compare_exchange_acq_rel(word, seen, uint64_t(2)) && seen == 1;
  }
};
struct Acquired {
  static bool told(Atomic<uint64_t>& word) { return load_acquire(word) == 1; }
};
struct Relaxed {
  static void tell(Atomic<uint64_t>& word) { word.store(1, kPlain); }
  static bool told(Atomic<uint64_t>& word) { return word.load(kPlain) == 1; }
};

template <typename Writer, typename Reader>
struct Handover {
  static constexpr size_t kThreads = 2;
  Atomic<uint64_t> word;
  Atomic<int> byte;
  bool told = false;
  int read = 0;

  void thread(size_t index) {
    if (index == 0) {
      byte.store(1, kPlain);
      Writer::tell(word);
    } else {
      told = Reader::told(word);
      read = byte.load(kPlain);
    }
  }
  bool wrong() const { return told && read != 1; }
};

template <typename... Reader>
struct Readers {
  template <typename Writer>
  static void check() {
    const auto wrong = {Model::wrong_runs<Handover<Writer, Reader>>()...};
    for (const uint64_t runs : wrong) ck_assert_uint_eq(runs, 0);
  }
};

TEST(whoever_sees_a_word_sees_the_bytes_before_it) {
  using All = Readers<Acquired, Exchanged, Compared, ComparedInVain>;
  All::check<Released>();
  All::check<Orred>();
  All::check<Exchanged>();
  All::check<Compared>();
}

TEST(each_side_of_a_handover_is_needed) {
  ck_assert_uint_gt((Model::wrong_runs<Handover<Relaxed, Acquired>>()), 0);
  ck_assert_uint_gt((Model::wrong_runs<Handover<Released, Relaxed>>()), 0);
}

/// Models the words of a bulk ticket and the generation that says that they are complete. A reader
/// that finds the generation unchanged afterwards has read the words of one generation.
struct Generation {
  static constexpr size_t kThreads = 2;
  Atomic<uint64_t> state{1}, body{1};
  uint64_t before = 0, read = 0, after = 0;

  void thread(size_t index) {
    if (index == 0) {
      store_release(state, 0u);
      store_release(body, 2u);
      store_release(state, 2u);
    } else {
      before = load_acquire(state);
      read = load_acquire(body);
      after = load_acquire(state);
    }
  }
  bool wrong() const { return before != 0 && before == after && read != before; }
};

TEST(a_ticket_that_did_not_change_is_of_one_generation) {
  ck_assert_uint_eq(Model::wrong_runs<Generation>(), 0);
}

// ---- memory that is taken back while it is being read -------------------------------------------

/// The owner revokes a remote key, and its application then fills the buffer anew.
template <typename Owner, typename Reader>
struct Revocation {
  static constexpr size_t kThreads = 2;
  Atomic<uint16_t> revoked;
  Atomic<int> byte{1};
  int read = 0;
  bool seen = false;

  void thread(size_t index) {
    if (index == 0) {
      tell_before_reuse<Owner>(revoked, uint16_t(7));
      byte.store(2, kPlain);
    } else {
      read = byte.load(kPlain);
      seen = look_after_reading<Reader>(revoked) != 0;
    }
  }
  bool wrong() const { return read == 2 && !seen; }
};

TEST(who_reads_what_its_owner_has_back_sees_that_it_was_revoked) {
  uint64_t runs = 0;
  ck_assert_uint_eq((Model::wrong_runs<Revocation<Order, Order>>(&runs)), 0);
  ck_assert_uint_gt(runs, 20);
}

/// An earlier algorithm, which was right on x86 only.
struct SequentialStore {
  static constexpr size_t kThreads = 2;
  Atomic<uint16_t> revoked;
  Atomic<int> byte{1};
  int read = 0;
  bool seen = false;

  void thread(size_t index) {
    if (index == 0) {
      revoked.store(7, std::memory_order_seq_cst);
      byte.store(2, kPlain);
    } else {
      read = byte.load(kPlain);
      seen = revoked.load(std::memory_order_seq_cst) != 0;
    }
  }
  bool wrong() const { return read == 2 && !seen; }
};

TEST(each_fence_of_a_revocation_is_needed) {
  ck_assert_uint_gt((Model::wrong_runs<Revocation<NoOrder, Order>>()), 0);
  ck_assert_uint_gt((Model::wrong_runs<Revocation<Order, NoOrder>>()), 0);
  ck_assert_uint_gt(Model::wrong_runs<SequentialStore>(), 0);
}

// ---- sleeping -----------------------------------------------------------------------------------

/// `Many`: there may be other wakers.
template <typename Waker, typename Sleeper, bool Many = false>
struct Sleep {
  static constexpr size_t kThreads = 2;
  Atomic<uint32_t> waiting;
  Atomic<int> published;
  bool woken = false, asleep = false;

  void thread(size_t index) {
    if (index == 0) {
      published.store(1, std::memory_order_release);
      if (Many)
        (void)wake_sleeper<Waker>(waiting, [this] { return woken = true; });
      else
        woken = take_sleeper<Waker>(waiting);
    } else {
      waiting.store(1, std::memory_order_relaxed);
      Sleeper::fence(std::memory_order_seq_cst);
      asleep = published.load(std::memory_order_acquire) == 0;
    }
  }
  bool wrong() const { return asleep && !woken; }
};

TEST(nobody_sleeps_on_what_was_published) {
  ck_assert_uint_eq((Model::wrong_runs<Sleep<Order, Order>>()), 0);
  ck_assert_uint_gt((Model::wrong_runs<Sleep<NoOrder, Order>>()), 0);
  ck_assert_uint_gt((Model::wrong_runs<Sleep<Order, NoOrder>>()), 0);
  ck_assert_uint_eq((Model::wrong_runs<Sleep<Order, Order, true>>()), 0);
  ck_assert_uint_gt((Model::wrong_runs<Sleep<NoOrder, Order, true>>()), 0);
}

/// Two threads publish and one sleeps. One of the two wakes it.
struct TwoWakers {
  static constexpr size_t kThreads = 3;
  Atomic<uint32_t> waiting{1};
  int woken[2] = {};

  void thread(size_t index) {
    if (index < 2) woken[index] = take_sleeper<Order>(waiting);
  }
  bool wrong() const { return woken[0] + woken[1] != 1; }
};

TEST(a_sleeper_is_woken_by_one_alone) {
  ck_assert_uint_eq(Model::wrong_runs<TwoWakers>(), 0);
}

/// A sleep ends, and another begins. Thread 0 rings for the first sleep, perhaps late. Thread 1
/// publishes what thread 2 looks for. The bell is emptied between the sleeps. `Second`: the number
/// of the second sleep.
template <uint32_t Second>
struct TwoSleeps {
  static constexpr size_t kThreads = 3;
  Atomic<uint32_t> armed{1};
  Atomic<int> published;
  bool rung = false, asleep = false;

  void thread(size_t index) {
    if (index < 2) {
      if (index == 1) published.store(1, std::memory_order_release);
      return (void)wake_sleeper<Order>(armed, [this] { return rung = true; });
    }
    armed.store(Second, std::memory_order_relaxed);
    rung = false;
    Order::fence(std::memory_order_seq_cst);
    asleep = published.load(std::memory_order_acquire) == 0;
  }
  bool wrong() const { return asleep && !rung; }
};

TEST(a_late_waker_ends_no_later_sleep) {
  ck_assert_uint_eq(Model::wrong_runs<TwoSleeps<2>>(), 0);
  ck_assert_uint_gt(Model::wrong_runs<TwoSleeps<1>>(), 0);
}

// ---- a shared region
// --------------------------------------------------------------------------------

struct ModelControl {
  Atomic<uint64_t> revocations;
  Atomic<uint32_t> inside, help;
};

OwnerGateOf<ModelControl> open_gate(ModelControl& control) {
  OwnerGateOf<ModelControl> gate(control);
  gate.open(0, 0);
  return gate;
}

struct Revoked {
  static void take_back(OwnerGateOf<ModelControl>& gate) { gate.revoke_region(); }
};
/// The end of a link revokes all that was shared over it.
struct LinkEnded {
  static void take_back(OwnerGateOf<ModelControl>& gate) { gate.end(); }
};

/// A peer reads memory that the owner revokes, and that its application then fills anew.
template <typename Owner>
struct ReadOfSharedMemory {
  static constexpr size_t kThreads = 2;
  ModelControl control;
  Atomic<int> byte{1};
  PeerGateOf<ModelControl> peer_gate{control, 0};
  OwnerGateOf<ModelControl> owner_gate = open_gate(control);
  int read = 0;

  void thread(size_t index) {
    if (index == 0) {
      if (!peer_gate.enter()) return;
      read = byte.load(kPlain);
      peer_gate.leave();
    } else {
      Owner::take_back(owner_gate);
      if (!owner_gate.inside()) byte.store(2, kPlain);
    }
  }
  bool wrong() const { return read == 2; }
};

/// A peer writes to memory that the owner revokes. Once no peer is inside, the memory no longer
/// changes.
template <typename Owner>
struct WriteToSharedMemory {
  static constexpr size_t kThreads = 2;
  ModelControl control;
  Atomic<int> byte{1};
  PeerGateOf<ModelControl> peer_gate{control, 0};
  OwnerGateOf<ModelControl> owner_gate = open_gate(control);
  bool wrote = false;
  int found = 2;

  void thread(size_t index) {
    if (index == 0) {
      if (!peer_gate.enter()) return;
      byte.store(2, kPlain);
      peer_gate.leave();
      wrote = true;
    } else {
      Owner::take_back(owner_gate);
      if (!owner_gate.inside()) found = byte.load(kPlain);
    }
  }
  bool wrong() const { return wrote && found != 2; }
};

TEST(nobody_is_inside_shared_memory_that_its_owner_has_back) {
  uint64_t runs = 0;
  ck_assert_uint_eq(Model::wrong_runs<ReadOfSharedMemory<Revoked>>(&runs), 0);
  ck_assert_uint_gt(runs, 20);
  ck_assert_uint_eq(Model::wrong_runs<WriteToSharedMemory<Revoked>>(), 0);
}

TEST(nobody_is_inside_shared_memory_when_the_owner_ended_the_link) {
  ck_assert_uint_eq(Model::wrong_runs<ReadOfSharedMemory<LinkEnded>>(), 0);
  ck_assert_uint_eq(Model::wrong_runs<WriteToSharedMemory<LinkEnded>>(), 0);
}

}  // namespace

}  // namespace erdma::transport::shm
