// Wait sets: fi_wait(3) on queues whose wait object is FI_WAIT_SET.
#include "fabric/wait_set.h"

#include <poll.h>

#include <atomic>
#include <thread>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/rig.h"
#include "fake/progress_source.h"
#include "quiet_fork.h"

// libfabric 2 deprecates wait sets; applications of API 1.x use them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;
using erdma::fabric::CompletionQueue;
using erdma::fabric::Counter;
using erdma::fabric::make_cntr;
using erdma::fabric::make_cq;
using erdma::util::DomainLock;
using erdma::util::Guard;

constexpr int kForever = -1;

/// A wait set of its own fabric.
struct Set {
  explicit Set(fi_wait_obj object = FI_WAIT_UNSPEC) : info(get_info()) {
    ck_assert_int_eq(provider()->fabric(info->fabric_attr, &fabric, nullptr), 0);
    fi_wait_attr attr{};
    attr.wait_obj = object;
    ck_assert_int_eq(fi_wait_open(fabric, &attr, &wait), 0);
  }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;
  ~Set() {
    ck_assert_int_eq(fi_close(&wait->fid), 0);
    ck_assert_int_eq(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
  }

  fi_cq_attr cq_attr() {
    fi_cq_attr attr{};
    attr.format = FI_CQ_FORMAT_TAGGED;
    attr.wait_obj = FI_WAIT_SET;
    attr.wait_set = wait;
    return attr;
  }
  fi_cntr_attr cntr_attr() {
    fi_cntr_attr attr{};
    attr.wait_obj = FI_WAIT_SET;
    attr.wait_set = wait;
    return attr;
  }
  fid_eq* open_eq() {
    fi_eq_attr attr{};
    attr.flags = FI_WRITE;
    attr.wait_obj = FI_WAIT_SET;
    attr.wait_set = wait;
    fid_eq* eq = nullptr;
    ck_assert_int_eq(fi_eq_open(fabric, &attr, &eq, nullptr), 0);
    return eq;
  }

  fi_info* info;
  fid_fabric* fabric = nullptr;
  fid_wait* wait = nullptr;
};

/// A completion queue in the set, driven by a source of the test.
struct Queue {
  explicit Queue(Set& set) {
    fi_cq_attr attr = set.cq_attr();
    auto made = make_cq({lock, 0, false, {}}, &attr, nullptr);
    ck_assert_int_eq(made.error(), 0);
    cq = *made;
    const Guard guard(lock);
    cq->attach(source);
  }
  ~Queue() {
    {
      const Guard guard(lock);
      cq->detach(source);
    }
    ck_assert_int_eq(fi_close(&cq->fid), 0);
  }
  /// Any thread may call this.
  void complete() {
    source.hand_in([this] { cq->push({}, nullptr); });
  }
  void read() {
    fi_cq_tagged_entry entry;
    ck_assert_int_eq(fi_cq_read(cq, &entry, 1), 1);
  }

  DomainLock lock{erdma::util::LockKind::mutex};
  FakeSource source;
  CompletionQueue* cq = nullptr;
};

void write(fid_eq* eq) {
  const fi_eq_entry entry{};
  ck_assert_int_eq(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
}

TEST(a_set_without_news_times_out_and_sleeps_until_then) {
  Set set;
  ck_assert_int_eq(fi_wait(set.wait, 0), -FI_ETIMEDOUT);
  ck_assert_int_eq(fi_wait(set.wait, 1), -FI_ETIMEDOUT);
  Queue queue(set);
  ck_assert_int_eq(fi_wait(set.wait, 0), -FI_ETIMEDOUT);  // resets the news of the new member
  queue.source.calls = 0;
  ck_assert_int_eq(fi_wait(set.wait, 50), -FI_ETIMEDOUT);
  ck_assert_int_le(queue.source.calls, 3);  // before, after, and at most one spurious wake-up
}

TEST(a_completion_ends_the_wait) {
  Set set;
  Queue idle(set), busy(set);
  for (int i = 0; i < 100; ++i) {
    std::thread peer([&] { busy.complete(); });
    ck_assert_int_eq(fi_wait(set.wait, kForever), 0);
    peer.join();
    ck_assert_int_eq(fi_wait(set.wait, kForever), 0);  // the completion is still unread
    busy.read();
    ck_assert_int_eq(fi_wait(set.wait, 0), -FI_ETIMEDOUT);
  }
}

/// A counter whose wait object is a set, driven by a source.
struct CounterInSet {
  CounterInSet() { cntr->attach(source); }
  ~CounterInSet() {
    cntr->detach(source);
    ck_assert_int_eq(fi_close(&cntr->fid), 0);
  }

  Set set;
  DomainLock lock{erdma::util::LockKind::mutex};
  FakeSource source;
  fi_cntr_attr attr = set.cntr_attr();
  Counter* cntr = *make_cntr({lock, 0, false, {}}, &attr, nullptr);
};

TEST(a_change_of_a_counter_ends_one_wait) {
  CounterInSet in;
  for (int i = 0; i < 100; ++i) {
    std::thread peer([&] {
      in.source.hand_in([&] { i % 2 ? in.cntr->add_failure() : in.cntr->add_success(1); });
    });
    ck_assert_int_eq(fi_wait(in.set.wait, kForever), 0);
    peer.join();
    ck_assert_int_eq(fi_wait(in.set.wait, 0), -FI_ETIMEDOUT);
  }
}

/// Another thread reads the counter before a thread in fi_wait has looked.
TEST(a_change_that_was_read_ends_one_wait) {
  CounterInSet in;
  ck_assert_int_eq(fi_wait(in.set.wait, 0), -FI_ETIMEDOUT);
  in.source.hand_in([&] { in.cntr->add_success(1); });
  ck_assert_uint_eq(fi_cntr_read(in.cntr), 1);
  ck_assert_int_eq(fi_wait(in.set.wait, 0), 0);
  ck_assert_int_eq(fi_wait(in.set.wait, 0), -FI_ETIMEDOUT);
}

TEST(an_event_ends_the_wait_until_it_is_read) {
  Set set;
  fid_eq* eq = set.open_eq();
  std::thread peer([&] { write(eq); });
  ck_assert_int_eq(fi_wait(set.wait, kForever), 0);
  peer.join();
  fi_eq_entry entry;
  uint32_t event;
  ck_assert_int_eq(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry));
  ck_assert_int_eq(fi_wait(set.wait, 0), -FI_ETIMEDOUT);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(a_signal_to_a_queue_ends_one_wait) {
  Set set;
  Queue queue(set);
  ck_assert_int_eq(fi_cq_signal(queue.cq), 0);
  ck_assert_int_eq(fi_wait(set.wait, kForever), 0);
  ck_assert_int_eq(fi_wait(set.wait, 0), -FI_ETIMEDOUT);
  std::thread peer([&] { fi_cq_signal(queue.cq); });
  ck_assert_int_eq(fi_wait(set.wait, kForever), 0);
  peer.join();
}

TEST(a_thread_that_waits_hears_of_a_queue_that_joins) {
  Set set;
  for (int i = 0; i < 50; ++i) {
    std::thread waiter([&] { ck_assert_int_eq(fi_wait(set.wait, kForever), 0); });
    Queue queue(set);
    queue.complete();
    waiter.join();
    queue.read();
  }
}

TEST(every_thread_that_waits_hears_of_news) {
  Set set;
  Queue queue(set);
  std::thread waiters[3];
  for (std::thread& waiter : waiters)
    waiter = std::thread([&] { ck_assert_int_eq(fi_wait(set.wait, kForever), 0); });
  queue.complete();
  for (std::thread& waiter : waiters) waiter.join();
  queue.read();
}

TEST(close_is_refused_while_a_thread_waits) {
  Set set;
  Queue* queue = new Queue(set);
  ck_assert_int_eq(fi_wait(set.wait, 0), -FI_ETIMEDOUT);
  std::atomic<bool> inside = false;
  queue->source.still_wanted = [&] { return inside = true; };
  std::thread waiter([&] { ck_assert_int_eq(fi_wait(set.wait, kForever), 0); });
  while (!inside) sched_yield();
  // The member may be closed: no thread looks at it any more, or sleeps in reliance on it.
  delete queue;
  for (int i = 0; i < 100; ++i) ck_assert_int_eq(fi_close(&set.wait->fid), -FI_EBUSY);
  fid_eq* eq = set.open_eq();
  write(eq);
  waiter.join();
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

/// The thread of the parent holds the mutex of the set, or it sleeps.
TEST(a_child_closes_a_set_that_a_thread_of_the_parent_is_in, 2) {
  Set set;
  Queue queue(set);
  std::atomic<bool> inside{false}, forked{false};
  const auto tell = [](std::atomic<bool>& event) {
    event = true;
    event.notify_one();
  };
  if (_i == 0) {
    queue.source.hand_in([&] {
      tell(inside);
      forked.wait(false);
    });
  } else {
    queue.source.still_wanted = [&] {
      tell(inside);
      return true;
    };
  }
  std::thread waiter([&] { ck_assert_int_eq(fi_wait(set.wait, kForever), 0); });
  inside.wait(false);
  ck_assert(holds_in_child([&] {
    queue.cq->detach(queue.source);
    return fi_close(&queue.cq->fid) == 0 && fi_close(&set.wait->fid) == 0 &&
           fi_close(&set.fabric->fid) == 0;
  }));
  tell(forked);
  queue.complete();
  waiter.join();
  queue.read();
}

TEST(what_is_closed_has_no_news) {
  Set set;
  {
    Queue queue(set);
    queue.complete();
    ck_assert_int_eq(fi_wait(set.wait, 0), 0);
    ck_assert_int_eq(fi_close(&set.wait->fid), -FI_EBUSY);
    ck_assert_int_eq(fi_close(&set.fabric->fid), -FI_EBUSY);
  }
  ck_assert_int_eq(fi_wait(set.wait, 0), -FI_ETIMEDOUT);
}

TEST(the_descriptor_tells_who_asked_before_sleeping) {
  Set set(FI_WAIT_FD);
  Queue queue(set);
  int fd = -1;
  fi_wait_obj object{};
  ck_assert_int_eq(fi_control(&set.wait->fid, FI_GETWAIT, &fd), 0);
  ck_assert_int_eq(fi_control(&set.wait->fid, FI_GETWAITOBJ, &object), 0);
  ck_assert_int_eq(object, FI_WAIT_FD);
  fid_t fids[] = {&set.wait->fid};
  while (fi_trywait(set.fabric, fids, 1) == -FI_EAGAIN) {
  }
  ck_assert(!readable(fd));
  std::thread peer([&] { queue.complete(); });
  pollfd sleeping{fd, POLLIN, 0};
  ck_assert_int_eq(poll(&sleeping, 1, kForever), 1);
  peer.join();
  ck_assert_int_eq(fi_trywait(set.fabric, fids, 1), -FI_EAGAIN);
  queue.read();
}

TEST(bad_arguments_are_refused) {
  Set set;
  fid_wait* none = nullptr;
  fi_wait_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  ck_assert_int_eq(fi_wait_open(set.fabric, nullptr, &none), -FI_EINVAL);
  ck_assert_int_eq(fi_wait_open(set.fabric, &attr, nullptr), -FI_EINVAL);
  attr.flags = 1;
  ck_assert_int_eq(fi_wait_open(set.fabric, &attr, &none), -FI_EINVAL);
  attr.flags = 0;
  for (const fi_wait_obj object : {FI_WAIT_NONE, FI_WAIT_SET}) {
    attr.wait_obj = object;
    ck_assert_int_eq(fi_wait_open(set.fabric, &attr, &none), -FI_EINVAL);
  }
  for (const fi_wait_obj object : {FI_WAIT_MUTEX_COND, FI_WAIT_POLLFD}) {
    attr.wait_obj = object;
    ck_assert_int_eq(fi_wait_open(set.fabric, &attr, &none), -FI_ENOSYS);
  }
  ck_assert_ptr_null(none);
  fi_eq_attr eq_attr{};
  fid_eq* eq = nullptr;
  eq_attr.wait_obj = FI_WAIT_SET;
  ck_assert_int_eq(fi_eq_open(set.fabric, &eq_attr, &eq, nullptr), -FI_EINVAL);
  ck_assert_ptr_null(eq);
}

/// On real endpoints, with a completion queue and a counter, manual and automatic progress.
TEST(a_message_of_another_domain_ends_the_wait, 2) {
  Set set;
  Root root({.threading = FI_THREAD_SAFE, .progress = _i ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL});
  Root other({.threading = FI_THREAD_SAFE});
  Port receiver(root, set.cq_attr()), sender(other);
  fi_cntr_attr attr = set.cntr_attr();
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &cntr, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(receiver.ep, &cntr->fid, FI_RECV), 0);
  const fi_addr_t to = sender.insert(receiver);
  for (uint64_t i = 1; i <= 100; ++i) {
    fi_context context;
    ck_assert_int_eq(fi_trecv(receiver.ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, i, 0, &context), 0);
    std::atomic<bool> over{false};
    std::thread peer([&] {
      while (fi_tinject(sender.ep, nullptr, 0, to, i) == -FI_EAGAIN) sender.progress();
      while (!over) sender.progress();
    });
    fi_cq_tagged_entry entry{};
    ssize_t rc;
    while ((rc = fi_cq_read(receiver.cq, &entry, 1)) == -FI_EAGAIN)
      ck_assert_int_eq(fi_wait(set.wait, kForever), 0);
    ck_assert_int_eq(rc, 1);
    ck_assert_uint_eq(entry.tag, i);
    ck_assert_uint_eq(fi_cntr_read(cntr), i);
    over = true;
    peer.join();
  }
  ck_assert_int_eq(fi_close(&receiver.ep->fid), 0);
  receiver.ep = nullptr;
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

}  // namespace
