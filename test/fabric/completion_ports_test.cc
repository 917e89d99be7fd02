#include "fabric/completion_ports.h"

#include <rdma/fi_errno.h>

#include "fake/progress_source.h"
#include "libcheck.h"

using erdma::fabric::CompletionPorts;
using erdma::fabric::CompletionQueue;
using erdma::fabric::Counter;
using erdma::test::FakeSource;
using erdma::util::DomainLock;
using erdma::util::Guard;

namespace {

DomainLock g_lock(erdma::util::LockKind::mutex);

struct Bound {
  Bound() : ports(source, nullptr) {
    const fi_cq_attr cq_attr{};
    auto made = erdma::fabric::make_cq({g_lock, FI_VERSION(1, 9), false, {}}, &cq_attr, nullptr);
    auto counted =
        erdma::fabric::make_cntr({g_lock, FI_VERSION(1, 9), false, {}}, nullptr, nullptr);
    ck_assert_int_eq(made.error() | counted.error(), 0);
    cq = *made;
    cntr = *counted;
  }
  ~Bound() {
    {
      const Guard guard(g_lock);
      ports.detach();
    }
    ck_assert_int_eq(fi_close(&cq->fid) | fi_close(&cntr->fid), 0);
  }
  /// How often reading the counter drives the source.
  int drives() {
    const int before = source.calls;
    fi_cntr_read(cntr);
    return source.calls - before;
  }
  FakeSource source;
  CompletionPorts ports;
  CompletionQueue* cq;
  Counter* cntr;
};

TEST(each_direction_has_one_queue_and_each_event_one_counter) {
  Bound b;
  const DomainLock foreign(erdma::util::LockKind::mutex);
  const Guard guard(g_lock);
  ck_assert_int_eq(b.ports.bind(*b.cq, FI_TRANSMIT | FI_READ, g_lock), -FI_EBADFLAGS);
  ck_assert_int_eq(b.ports.bind(*b.cq, FI_SELECTIVE_COMPLETION, g_lock), -FI_EINVAL);
  ck_assert_int_eq(b.ports.bind(*b.cq, FI_TRANSMIT, foreign), -FI_EINVAL);
  ck_assert_int_eq(b.ports.bind(*b.cq, FI_TRANSMIT | FI_SELECTIVE_COMPLETION, g_lock), 0);
  ck_assert_int_eq(b.ports.bind(*b.cq, FI_TRANSMIT, g_lock), -FI_EINVAL);
  ck_assert_int_eq(b.ports.bind(*b.cq, FI_RECV, g_lock), 0);
  ck_assert(b.ports.sent.selective && b.ports.reads.selective && b.ports.writes.selective);
  ck_assert(!b.ports.received.selective);
  ck_assert(b.ports.sent.cq && b.ports.reads.cq && b.ports.writes.cq && b.ports.remote_writes.cq);
  ck_assert_ptr_null(b.ports.remote_reads.cq);
  ck_assert_int_eq(b.ports.bind(*b.cntr, FI_TAGGED, g_lock), -FI_EBADFLAGS);
  ck_assert_int_eq(b.ports.bind(*b.cntr, 0, g_lock), -FI_EINVAL);
  ck_assert_int_eq(b.ports.bind(*b.cntr, FI_SEND, foreign), -FI_EINVAL);
  ck_assert_int_eq(b.ports.bind(*b.cntr, FI_SEND | FI_REMOTE_READ, g_lock), 0);
  ck_assert_int_eq(b.ports.bind(*b.cntr, FI_RECV | FI_SEND, g_lock), -FI_EINVAL);
  ck_assert(b.ports.sent.cntr && b.ports.remote_reads.cntr && !b.ports.received.cntr);
}

TEST(a_watched_counter_drives_the_source_until_it_is_unwatched) {
  Bound b;
  ck_assert_int_eq(b.drives(), 0);
  {
    const Guard guard(g_lock);
    b.ports.watch_counter(*b.cntr);
    b.ports.watch_counter(*b.cntr);
  }
  ck_assert_int_eq(b.drives(), 1);
  {
    const Guard guard(g_lock);
    b.ports.unwatch_counter(*b.cntr);
  }
  ck_assert_int_eq(b.drives(), 0);
}

TEST(a_counter_that_is_bound_stays_when_it_is_unwatched) {
  Bound b;
  {
    const Guard guard(g_lock);
    ck_assert_int_eq(b.ports.bind(*b.cntr, FI_WRITE, g_lock), 0);
    b.ports.watch_counter(*b.cntr);
    b.ports.unwatch_counter(*b.cntr);
  }
  ck_assert_int_eq(b.drives(), 1);
}

TEST(what_is_detached_is_driven_no_more_and_loses_its_entries) {
  Bound b;
  fi_cq_entry entry;
  {
    const Guard guard(g_lock);
    ck_assert_int_eq(b.ports.bind(*b.cq, FI_TRANSMIT | FI_RECV, g_lock), 0);
    ck_assert_int_eq(b.ports.bind(*b.cntr, FI_READ, g_lock), 0);
    b.ports.sent.succeed(true) = {};
    b.ports.detach();
  }
  ck_assert_int_eq(b.drives(), 0);
  ck_assert_int_eq(int(fi_cq_read(b.cq, &entry, 1)), -FI_EAGAIN);
  ck_assert_int_eq(b.source.calls, 0);
}

/// Each direction has its own queue.
TEST(both_queues_are_detached) {
  Bound of_receives, b;  // ports must be destroyed before their queues
  fi_cq_entry entry;
  CompletionQueue* const queues[] = {b.cq, of_receives.cq};
  {
    const Guard guard(g_lock);
    ck_assert_int_eq(b.ports.bind(*queues[0], FI_TRANSMIT, g_lock), 0);
    ck_assert_int_eq(b.ports.bind(*queues[1], FI_RECV, g_lock), 0);
  }
  for (CompletionQueue* cq : queues) {
    const int before = b.source.calls;
    ck_assert_int_eq(int(fi_cq_read(cq, &entry, 1)), -FI_EAGAIN);
    ck_assert_int_eq(b.source.calls, before + 1);
  }
  {
    const Guard guard(g_lock);
    b.ports.detach();
  }
  const int before = b.source.calls;
  for (CompletionQueue* cq : queues) ck_assert_int_eq(int(fi_cq_read(cq, &entry, 1)), -FI_EAGAIN);
  ck_assert_int_eq(b.source.calls, before);
}

}  // namespace
