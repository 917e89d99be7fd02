// A forked child may not use objects of its parent: each call returns an error, and the parent is
// not affected.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "fabric/cq.h"
#include "fabric/trigger_rig.h"
#include "fake/captured_log.h"
#include "quiet_fork.h"

// For wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;
using erdma::fabric::CompletionQueue;

TEST_CASE(.set_up = on_shm);

/// Fails with the number, from 1, of the first call in a child that does not return
/// -FI_EOPBADSTATE. A child that hangs ends after ten seconds.
template <typename Calls>
void expect_refused_in_child(Calls calls) {
  const pid_t child = quiet_fork();
  if (child == 0) {
    std::signal(SIGALRM, SIG_DFL);
    alarm(10);
    int number = 0;
    for (const ssize_t result : calls()) {
      ++number;
      if (result != -FI_EOPBADSTATE) _exit(number);
    }
    _exit(0);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
}

TEST(a_shared_context_of_the_parent_is_refused) {
  Root root;
  fid_ep* srx = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, nullptr, &srx, nullptr), 0);
  char byte = 0;
  fi_context context;
  const fi_msg_tagged peek{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 7, 0, &context, 0};
  expect_refused_in_child([&] {
    return std::vector<ssize_t>{fi_recv(srx, &byte, 1, nullptr, FI_ADDR_UNSPEC, &context),
                                fi_trecv(srx, &byte, 1, nullptr, FI_ADDR_UNSPEC, 7, 0, &context),
                                fi_trecvmsg(srx, &peek, FI_PEEK), fi_cancel(&srx->fid, &context)};
  });
  ck_assert_int_eq(fi_recv(srx, &byte, 1, nullptr, FI_ADDR_UNSPEC, &context), 0);
  ck_assert_int_eq(fi_close(&srx->fid), 0);
}

/// Queues a send that waits until the counter reaches 1.
struct LaterWorld : TriggerWorld {
  char bytes[8] = {};
  fi_triggered_context later = condition(1);
  const iovec iov{bytes, 8};
  const fi_msg msg{&iov, nullptr, 1, to, &later, 0};
};

TEST(an_endpoint_of_the_parent_is_refused) {
  LaterWorld world;
  char* const bytes = world.bytes;
  fid_ep* const ep = world.a.ep;
  const uint64_t key = world.region.key();
  expect_refused_in_child([&] {
    return std::vector<ssize_t>{
        fi_send(ep, bytes, 8, nullptr, world.to, nullptr),
        fi_recv(ep, bytes, 8, nullptr, FI_ADDR_UNSPEC, nullptr),
        fi_write(ep, bytes, 8, nullptr, world.to, world.at(0), key, nullptr),
        fi_atomic(ep, bytes, 1, nullptr, world.to, world.at(0), key, FI_UINT64, FI_SUM, nullptr),
        fi_sendmsg(ep, &world.msg, FI_TRIGGER),
        fi_cancel(&ep->fid, nullptr),
    };
  });
  exchange(world.a, world.b, world.to, 1000);
}

/// A work that waited for a counter at the fork becomes due in the child, and ends with an error.
TEST(what_is_due_in_a_child_is_an_error_completion) {
  LaterWorld world;
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &world.msg, FI_TRIGGER), 0);
  expect_refused_in_child([&] {
    world.add();
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    if (fi_cq_read(world.a.cq, &entry, 1) != -FI_EAVAIL) return std::vector<ssize_t>{0};
    if (fi_cq_readerr(world.a.cq, &error, 0) != 1) return std::vector<ssize_t>{0};
    return std::vector<ssize_t>{-error.err};
  });
  ck_assert_int_eq(fi_recv(world.b.ep, world.bytes, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  world.add();
  ck_assert_ptr_eq(world.a.wait(&world.b).op_context, &world.later);
}

/// Tries each call that opens an object in a domain, or enables one.
std::vector<ssize_t> open_each(Root& root, fid_ep* off, fid_ep* on) {
  fi_av_attr av_attr{};
  fi_cq_attr cq_attr{};
  fi_poll_attr poll_attr{};
  fid_av* av;
  fid_cq* cq;
  fid_cntr* cntr;
  fid_poll* polls;
  fid_ep* ep;
  fid_mr* mr;
  char byte = 0;
  const iovec iov{&byte, 1};
  fi_mr_attr mr_attr{};
  mr_attr.mr_iov = &iov;
  mr_attr.iov_count = 1;
  mr_attr.access = FI_SEND;
  return {fi_av_open(root.domain, &av_attr, &av, nullptr),
          fi_cq_open(root.domain, &cq_attr, &cq, nullptr),
          fi_cntr_open(root.domain, nullptr, &cntr, nullptr),
          fi_poll_open(root.domain, &poll_attr, &polls),
          fi_endpoint(root.domain, root.info, &ep, nullptr),
          fi_endpoint2(root.domain, root.info, &ep, 0, nullptr),
          fi_srx_context(root.domain, nullptr, &ep, nullptr),
          fi_mr_reg(root.domain, &byte, 1, FI_SEND, 0, 0, 0, &mr, nullptr),
          fi_mr_regv(root.domain, &iov, 1, FI_SEND, 0, 0, 0, &mr, nullptr),
          fi_mr_regattr(root.domain, &mr_attr, 0, &mr),
          fi_enable(off),
          fi_ep_alias(on, &ep, FI_TRANSMIT)};
}

TEST(nothing_is_opened_in_a_domain_of_the_parent) {
  Root root;
  const Port port(root);
  fid_ep* off = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &off, nullptr), 0);
  expect_refused_in_child([&] { return open_each(root, off, port.ep); });
  ck_assert(holds_in_child([&] {
    g_log.clear();
    return fi_enable(off) == -FI_EOPBADSTATE && contains(only_log_line(), "open a domain in");
  }));
  ck_assert_int_eq(fi_close(&off->fid), 0);
}

TEST(a_child_may_open_a_domain_in_the_fabric_of_its_parent) {
  const Root parents;
  ck_assert(holds_in_child([&] {
    fid_domain* domain = nullptr;
    fi_av_attr attr{};
    fid_av* av = nullptr;
    return fi_domain(parents.fabric, parents.info, &domain, nullptr) == 0 &&
           fi_av_open(domain, &attr, &av, nullptr) == 0 && fi_close(&av->fid) == 0 &&
           fi_close(&domain->fid) == 0;
  }));
}

/// Objects on which a thread may sleep.
struct Sleepable {
  Sleepable() {
    fi_cntr_attr cntr_attr{};
    fi_eq_attr eq_attr{};
    fi_wait_attr set_attr{};
    cntr_attr.wait_obj = eq_attr.wait_obj = set_attr.wait_obj = FI_WAIT_FD;
    eq_attr.flags = FI_WRITE;
    ck_assert_int_eq(fi_cntr_open(root.domain, &cntr_attr, &cntr, nullptr), 0);
    ck_assert_int_eq(fi_cntr_open(root.domain, nullptr, &polled, nullptr), 0);
    ck_assert_int_eq(fi_eq_open(root.fabric, &eq_attr, &eq, nullptr), 0);
    ck_assert_int_eq(fi_wait_open(root.fabric, &set_attr, &set), 0);
  }
  ~Sleepable() {
    for (const fid_t each : {&cntr->fid, &polled->fid, &eq->fid, &set->fid})
      ck_assert_int_eq(fi_close(each), 0);
  }
  Sleepable(const Sleepable&) = delete;
  Sleepable& operator=(const Sleepable&) = delete;

  ssize_t read_eq(int timeout_ms) const {
    uint32_t event;
    fi_eq_entry entry;
    return fi_eq_sread(eq, &event, &entry, sizeof(entry), timeout_ms, 0);
  }
  int try_wait(fid_t object) const { return fi_trywait(root.fabric, &object, 1); }

  Root root;
  Port port{root, FI_WAIT_FD};
  fid_cq* const cq = port.cq;
  fid_cntr *cntr = nullptr, *polled = nullptr;
  fid_eq* eq = nullptr;
  fid_wait* set = nullptr;
};

TEST(no_thread_may_sleep_on_what_the_parent_opened, 3) {
  const Sleepable all;
  const int timeout_ms = std::array{0, 1, -1}[size_t(_i)];
  expect_refused_in_child([&] {
    fi_cq_tagged_entry entry;
    return std::vector<ssize_t>{
        fi_cq_sread(all.cq, &entry, 1, nullptr, timeout_ms),
        fi_cq_sread(all.cq, nullptr, 0, nullptr, timeout_ms),
        fi_cntr_wait(all.cntr, 1, timeout_ms),
        fi_cntr_wait(all.polled, 1, timeout_ms),
        all.read_eq(timeout_ms),
        fi_wait(all.set, timeout_ms),
    };
  });
}

TEST(no_thread_may_watch_a_descriptor_that_the_parent_opened) {
  const Sleepable all;
  expect_refused_in_child([&] {
    return std::vector<ssize_t>{all.try_wait(&all.cq->fid), all.try_wait(&all.cntr->fid),
                                all.try_wait(&all.eq->fid), all.try_wait(&all.set->fid)};
  });
}

TEST(a_child_can_read_what_was_reported_before_the_fork, 3) {
  const Sleepable all;
  const int timeout_ms = std::array{0, 1, -1}[size_t(_i)];
  const fi_eq_entry event{};
  CompletionQueue::from(all.cq).push({}, nullptr);
  ck_assert_int_eq(fi_cntr_add(all.cntr, 1), 0);
  ck_assert_int_eq(fi_eq_write(all.eq, FI_NOTIFY, &event, sizeof(event), 0), sizeof(event));
  ck_assert(holds_in_child([&] {
    fi_cq_tagged_entry entry;
    return all.try_wait(&all.cq->fid) == -FI_EAGAIN && all.try_wait(&all.eq->fid) == -FI_EAGAIN &&
           all.try_wait(&all.cntr->fid) == -FI_EAGAIN &&
           fi_cq_sread(all.cq, &entry, 1, nullptr, timeout_ms) == 1 &&
           fi_cntr_wait(all.cntr, 1, timeout_ms) == 0 &&
           all.read_eq(timeout_ms) == ssize_t(sizeof(event));
  }));
}

TEST(a_poll_set_finds_no_news_in_an_event_queue_of_the_parent) {
  Sleepable all;
  fid_poll* polls = nullptr;
  fi_poll_attr attr{};
  ck_assert_int_eq(fi_poll_open(all.root.domain, &attr, &polls), 0);
  ck_assert_int_eq(fi_poll_add(polls, &all.eq->fid, 0), 0);
  void* context = nullptr;
  ck_assert(holds_in_child([&] { return fi_poll(polls, &context, 1) == 0; }));
  ck_assert_int_eq(fi_close(&polls->fid), 0);
}

TEST(a_wait_set_of_the_parent_is_refused) {
  Root root;
  fid_wait* set = nullptr;
  fi_wait_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  ck_assert_int_eq(fi_wait_open(root.fabric, &attr, &set), 0);
  expect_refused_in_child([&] { return std::vector<ssize_t>{fi_wait(set, 0), fi_wait(set, 1)}; });
  ck_assert_int_eq(fi_wait(set, 0), -FI_ETIMEDOUT);
  ck_assert_int_eq(fi_close(&set->fid), 0);
}

}  // namespace
