// A thread that is cancelled while it sleeps in a call of libfabric neither ends the process nor
// leaves the call early.
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/domain.h"
#include "fabric/eq.h"
#include "fabric/rig.h"

// For wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;
using erdma::fabric::CompletionQueue;
using erdma::fabric::Counter;
using erdma::fabric::EventQueue;

TEST_CASE(.set_up = on_shm);

constexpr int kForever = -1;

Ask for_threads() {
  Ask ask;
  ask.threading = FI_THREAD_SAFE;
  return ask;
}

/// Objects on which a thread can sleep. The set contains the member.
struct CancelScene {
  CancelScene() {
    fi_cntr_attr cntr_attr{}, member_attr{};
    fi_eq_attr eq_attr{};
    fi_wait_attr set_attr{};
    cntr_attr.wait_obj = eq_attr.wait_obj = set_attr.wait_obj = FI_WAIT_FD;
    eq_attr.flags = FI_WRITE;
    ck_assert_int_eq(fi_cntr_open(root.domain, &cntr_attr, &cntr, nullptr), 0);
    ck_assert_int_eq(fi_eq_open(root.fabric, &eq_attr, &eq, nullptr), 0);
    ck_assert_int_eq(fi_wait_open(root.fabric, &set_attr, &set), 0);
    member_attr.wait_obj = FI_WAIT_SET;
    member_attr.wait_set = set;
    ck_assert_int_eq(fi_cntr_open(root.domain, &member_attr, &member, nullptr), 0);
  }
  CancelScene(const CancelScene&) = delete;
  CancelScene& operator=(const CancelScene&) = delete;
  ~CancelScene() {
    for (const fid_t each : {&cntr->fid, &eq->fid, &member->fid, &set->fid})
      ck_assert_int_eq(fi_close(each), 0);
  }

  template <typename Object>
  bool sleeps_on(Object& object) {
    const erdma::util::Guard guard(erdma::fabric::Domain::from(root.domain).lock());
    return object.sleeping();
  }

  Root root{for_threads()};
  Port port{root, FI_WAIT_FD};
  fid_cntr *cntr = nullptr, *member = nullptr;
  fid_eq* eq = nullptr;
  fid_wait* set = nullptr;
  char in = 0, out = 1;
  std::array<fi_context, 2> contexts{};
};

/// One blocking call. `call` returns true if it found what `deliver` gave.
struct Blocking {
  bool (*call)(CancelScene&);
  bool (*asleep)(CancelScene&);
  void (*deliver)(CancelScene&);
};

bool read_message(CancelScene& scene) {
  fi_cq_tagged_entry entry{};
  return fi_cq_sread(scene.port.cq, &entry, 1, nullptr, kForever) == 1;
}
/// Two completions, one of them for the sleeping thread.
void send_message(CancelScene& scene) {
  Port& port = scene.port;
  const fi_addr_t self = port.insert(port);
  ck_assert_int_eq(
      fi_trecv(port.ep, &scene.in, 1, nullptr, FI_ADDR_UNSPEC, 7, 0, &scene.contexts.at(0)), 0);
  ck_assert_int_eq(fi_tsend(port.ep, &scene.out, 1, nullptr, self, 7, &scene.contexts.at(1)), 0);
  port.wait();
}

bool read_event(CancelScene& scene) {
  uint32_t type = 0;
  fi_eq_entry entry{};
  return fi_eq_sread(scene.eq, &type, &entry, sizeof(entry), kForever, 0) == ssize_t(sizeof(entry));
}
void write_event(CancelScene& scene) {
  const fi_eq_entry entry{};
  ck_assert_int_eq(fi_eq_write(scene.eq, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
}

constexpr std::array<Blocking, 4> kBlocking{{
    {read_message, [](CancelScene& s) { return s.sleeps_on(CompletionQueue::from(s.port.cq)); },
     send_message},
    {[](CancelScene& s) { return fi_cntr_wait(s.cntr, 1, kForever) == 0; },
     [](CancelScene& s) { return s.sleeps_on(Counter::from(s.cntr)); },
     [](CancelScene& s) { ck_assert_int_eq(fi_cntr_add(s.cntr, 1), 0); }},
    {read_event, [](CancelScene& s) { return EventQueue::from(s.eq).sleeping(); }, write_event},
    {[](CancelScene& s) { return fi_wait(s.set, kForever) == 0; },
     [](CancelScene& s) { return s.sleeps_on(Counter::from(s.member)); },
     [](CancelScene& s) { ck_assert_int_eq(fi_cntr_add(s.member, 1), 0); }},
}};

struct Cancelled {
  const Blocking& blocking;
  CancelScene& scene;
  std::atomic<bool> found{false};
};

/// The request exists before the call, so each cancellation point in the call meets it.
void* call_cancelled(void* argument) {
  auto& self = *static_cast<Cancelled*>(argument);
  pthread_cancel(pthread_self());
  self.found = self.blocking.call(self.scene);
  pthread_testcancel();
  return nullptr;
}

TEST(a_cancelled_thread_ends_after_the_call_in_which_it_sleeps, kBlocking.size()) {
  CancelScene scene;
  Cancelled thread{kBlocking.at(size_t(_i)), scene};
  pthread_t id;
  ck_assert_int_eq(pthread_create(&id, nullptr, call_cancelled, &thread), 0);
  while (!thread.blocking.asleep(scene)) sched_yield();
  thread.blocking.deliver(scene);
  void* result = nullptr;
  ck_assert_int_eq(pthread_join(id, &result), 0);
  ck_assert(thread.found);
  ck_assert_ptr_eq(result, PTHREAD_CANCELED);
}

}  // namespace
