#include <atomic>
#include <thread>

#include "fabric/rig.h"

// Counters as applications use them: through the provider's entry points only.
using namespace erdma::test;

namespace {

constexpr int kForever = -1;

fid_cntr* open(Root& root, fi_wait_obj wait) {
  fi_cntr_attr attr{};
  attr.wait_obj = wait;
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &cntr, nullptr), 0);
  return cntr;
}

}  // namespace

TEST(counter_sets_adds_and_reads_both_values) {
  Root root;
  fid_cntr* cntr = open(root, FI_WAIT_NONE);
  ck_assert_int_eq(fi_cntr_set(cntr, 5), 0);
  ck_assert_int_eq(fi_cntr_seterr(cntr, 6), 0);
  ck_assert_int_eq(fi_cntr_add(cntr, 10), 0);
  ck_assert_int_eq(fi_cntr_adderr(cntr, 20), 0);
  ck_assert_uint_eq(fi_cntr_read(cntr), 15);
  ck_assert_uint_eq(fi_cntr_readerr(cntr), 26);
  ck_assert_int_eq(fi_close(&root.domain->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(counter_open_refuses_bad_arguments) {
  Root root;
  fi_cntr_attr attr{};
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, nullptr, nullptr), -FI_EINVAL);
  fid_cntr* cntr = nullptr;
  attr.flags = 1;
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &cntr, nullptr), -FI_EINVAL);
  attr.flags = 0;
  attr.wait_obj = FI_WAIT_MUTEX_COND;
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &cntr, nullptr), -FI_ENOSYS);
  ck_assert_ptr_null(cntr);
}

/// fi_endpoint(3): a counter of FI_RECV counts received messages.
TEST(peeks_are_not_counted) {
  Root root;
  fid_cntr* cntr = open(root, FI_WAIT_NONE);
  {
    Port sender(root), receiver(root);
    ck_assert_int_eq(fi_ep_bind(receiver.ep, &cntr->fid, FI_RECV), 0);
    const auto count_is = [&](uint64_t successes) {
      ck_assert_uint_eq(fi_cntr_readerr(cntr), 0);
      ck_assert_uint_eq(fi_cntr_read(cntr), successes);
    };
    fi_context context;
    fi_msg_tagged msg{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 7, 0, &context, 0};
    ck_assert_int_eq(fi_trecvmsg(receiver.ep, &msg, FI_PEEK), 0);
    ck_assert_int_eq(receiver.wait_error().err, FI_ENOMSG);
    count_is(0);
    const fi_addr_t to = sender.insert(receiver);
    const auto peek_until_found = [&](uint64_t flags) {
      fi_cq_tagged_entry entry;
      fi_cq_err_entry miss{};
      for (;;) {
        ck_assert_int_eq(fi_trecvmsg(receiver.ep, &msg, FI_PEEK | flags), 0);
        if (fi_cq_read(receiver.cq, &entry, 1) == 1) return;
        fi_cq_readerr(receiver.cq, &miss, 0);
        sender.progress();
      }
    };
    for (uint64_t received = 0; received < 4; ++received) {
      ck_assert_int_eq(fi_tinject(sender.ep, nullptr, 0, to, 7), 0);
      peek_until_found(0);
      count_is(received);
      const bool claims = received % 2;
      if (claims) {
        peek_until_found(FI_CLAIM);
        count_is(received);
      }
      ck_assert_int_eq(fi_trecvmsg(receiver.ep, &msg, claims ? FI_CLAIM : 0), 0);
      receiver.wait(&sender);
      count_is(received + 1);
    }
    ck_assert_int_eq(fi_tinject(sender.ep, nullptr, 0, to, 7), 0);
    peek_until_found(FI_DISCARD);  // takes the message, as a receive does
    count_is(5);
  }
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(counter_bound_after_enable_counts_and_wakes_its_waiter, 2) {
  Root root({.threading = FI_THREAD_SAFE, .progress = _i ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL});
  Root other({.threading = FI_THREAD_SAFE});
  fid_cntr* cntr = open(root, FI_WAIT_UNSPEC);
  {
    Port receiver(root);
    Port sender(other);
    ck_assert_int_eq(fi_ep_bind(receiver.ep, &cntr->fid, FI_RECV), 0);
    ck_assert_int_eq(fi_close(&cntr->fid), -FI_EBUSY);
    const fi_addr_t to = sender.insert(receiver);
    for (uint64_t i = 1; i <= 50; ++i) {
      ck_assert_int_eq(
          fi_trecv(receiver.ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, UINT64_MAX, nullptr), 0);
      std::atomic<bool> over{false};
      std::thread peer([&] {
        while (fi_tinject(sender.ep, nullptr, 0, to, 1) == -FI_EAGAIN) sender.progress();
        while (!over) sender.progress();
      });
      ck_assert_int_eq(fi_cntr_wait(cntr, i, kForever), 0);
      ck_assert_uint_eq(fi_cntr_read(cntr), i);
      over = true;
      peer.join();
    }
  }
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(wait_times_out_without_events) {
  Root root;
  fid_cntr* cntr = open(root, FI_WAIT_FD);
  ck_assert_int_eq(fi_cntr_wait(cntr, 1, 1), -FI_ETIMEDOUT);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}
