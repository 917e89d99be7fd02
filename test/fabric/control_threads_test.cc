// Control calls of other threads while one transfers data under FI_THREAD_DOMAIN: fi_domain(3).
#include <atomic>
#include <thread>
#include <vector>

#include <rdma/fi_rma.h>

#include "fabric/rig.h"
#include "libcheck.h"

namespace {

using erdma::test::Ask;
using erdma::test::exchange;
using erdma::test::get_info;
using erdma::test::Port;
using erdma::test::Root;

fi_info* domain_threading(fi_progress control) {
  Ask ask;
  ask.caps = FI_TAGGED | FI_RMA;
  ask.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  ask.threading = FI_THREAD_DOMAIN;
  fi_info* info = get_info(ask);
  info->domain_attr->control_progress = control;
  return info;
}

struct Traffic {
  Root root{domain_threading(FI_PROGRESS_MANUAL)}, other{domain_threading(FI_PROGRESS_MANUAL)};
  Root& of_b;
  Port a{root}, b{of_b};
  const fi_addr_t to = a.insert(b);
  uint64_t target = 0;
  fid_mr* region = nullptr;
  std::atomic<int> busy{0};  ///< threads that make control calls

  /// `apart`: the endpoints are in two domains, whose data calls one thread makes.
  explicit Traffic(bool apart = false) : of_b(apart ? other : root) {
    ck_assert_int_eq(
        fi_mr_reg(of_b.domain, &target, sizeof(target), FI_REMOTE_WRITE, 0, 0, 0, &region, nullptr),
        0);
  }
  ~Traffic() { ck_assert_int_eq(fi_close(&region->fid), 0); }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  /// Each size takes another way: a packet, several packets, a copy by the receiver. A write looks
  /// up the region.
  void run() {
    uint64_t value = 0;
    do {
      for (const size_t length : {size_t(8), size_t(20'000), size_t(300'000)})
        exchange(a, b, to, length);
      for (int i = 0; i < 100; ++i) write(++value);
    } while (busy.load() > 0);
  }
  void write(uint64_t value) {
    fi_context context;
    ck_assert_int_eq(fi_write(a.ep, &value, sizeof(value), nullptr, to,
                              reinterpret_cast<uint64_t>(&target), fi_mr_key(region), &context),
                     0);
    ck_assert_ptr_eq(a.wait(&b).op_context, &context);
    ck_assert_uint_eq(written(), value);
  }
  /// A thread that makes control calls may serve the next write. It synchronises with this one
  /// through memory that is mapped twice, which ThreadSanitizer does not see.
  [[gnu::noinline, gnu::no_sanitize("thread")]] uint64_t written() const { return target; }
  template <typename Call>
  std::thread repeat(int rounds, Call call) {
    ++busy;
    return std::thread([this, rounds, call] {
      for (int i = 0; i < rounds; ++i) call();
      --busy;
    });
  }
};

TEST(other_threads_register_memory_while_one_transfers) {
  Traffic traffic;
  const auto register_and_close = [&] {
    char memory[64] = "";
    fid_mr* region = nullptr;
    ck_assert_int_eq(fi_mr_reg(traffic.root.domain, memory, sizeof(memory), FI_REMOTE_WRITE, 0, 0,
                               0, &region, nullptr),
                     0);
    ck_assert_int_eq(fi_close(&region->fid), 0);
  };
  std::thread one = traffic.repeat(2000, register_and_close);
  std::thread other = traffic.repeat(2000, register_and_close);
  traffic.run();
  one.join();
  other.join();
}

TEST(another_thread_inserts_and_removes_addresses_while_one_transfers) {
  Traffic traffic;
  Port c(traffic.root);
  const auto name = c.name();
  std::thread other = traffic.repeat(2000, [&] {
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    ck_assert_int_eq(fi_av_insert(traffic.a.av, name.data(), 1, &address, 0, nullptr), 1);
    ck_assert_int_eq(fi_av_remove(traffic.a.av, &address, 1, 0), 0);
  });
  traffic.run();
  other.join();
}

TEST(another_thread_opens_and_closes_endpoints_while_one_transfers) {
  Traffic traffic;
  std::thread other = traffic.repeat(20, [&] { const Port port(traffic.root); });
  traffic.run();
  other.join();
}

/// The queue and the counter of the transferring thread get more endpoints meanwhile.
TEST(another_thread_binds_to_the_queue_that_one_reads) {
  Traffic traffic;
  std::thread other = traffic.repeat(20, [&] {
    fid_ep* ep = nullptr;
    fid_cntr* cntr = nullptr;
    ck_assert_int_eq(fi_endpoint(traffic.root.domain, traffic.root.info, &ep, nullptr), 0);
    ck_assert_int_eq(fi_cntr_open(traffic.root.domain, nullptr, &cntr, nullptr), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &traffic.a.cq->fid, FI_TRANSMIT | FI_RECV), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &cntr->fid, FI_SEND), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &traffic.a.av->fid, 0), 0);
    ck_assert_int_eq(fi_enable(ep), 0);
    ck_assert_int_eq(fi_close(&ep->fid), 0);
    ck_assert_int_eq(fi_close(&cntr->fid), 0);
  });
  traffic.run();
  other.join();
}

/// As in a multithreaded MPICH, which has a domain for each set of its threads.
TEST(calls_of_all_kinds_come_while_one_thread_transfers_between_two_domains) {
  Traffic traffic(true);
  Port c(traffic.root);
  const auto name = c.name();
  const auto open_and_close = [&](Root& root, Port& used) {
    uint64_t memory = 0;
    fid_mr* region = nullptr;
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    ck_assert_int_eq(
        fi_mr_reg(root.domain, &memory, sizeof(memory), FI_REMOTE_WRITE, 0, 0, 0, &region, nullptr),
        0);
    ck_assert_int_eq(fi_av_insert(used.av, name.data(), 1, &address, 0, nullptr), 1);
    std::vector<char> found(64);
    size_t length = found.size();
    ck_assert_int_eq(fi_av_lookup(used.av, address, found.data(), &length), 0);
    found.resize(length);
    ck_assert(found == name);
    {
      const Port port(root);
      ck_assert_int_eq(fi_av_remove(used.av, &address, 1, 0), 0);
    }
    ck_assert_int_eq(fi_close(&region->fid), 0);
  };
  std::thread one = traffic.repeat(50, [&] { open_and_close(traffic.root, traffic.a); });
  std::thread two = traffic.repeat(50, [&] { open_and_close(traffic.of_b, traffic.b); });
  std::thread both = traffic.repeat(50, [&] {
    open_and_close(traffic.root, traffic.b);
    open_and_close(traffic.of_b, traffic.a);
  });
  traffic.run();
  one.join();
  two.join();
  both.join();
}

/// FI_PROGRESS_CONTROL_UNIFIED: the application serializes all calls.
TEST(an_application_may_serialize_control_calls_too) {
  Root root(domain_threading(fi_progress(FI_PROGRESS_MANUAL + 1)));
  Port a(root), b(root);
  exchange(a, b, a.insert(b), 300'000);
}

}  // namespace
