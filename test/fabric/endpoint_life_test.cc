#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "fabric/domain.h"
#include "fabric/rig.h"
#include "fake/lock_wait.h"
#include "quiet_fork.h"

namespace {

using namespace erdma::test;

TEST(counters_count_sends_and_receives_also_when_bound_after_enable) {
  Root root;
  Port a(root), b(root);
  fi_cntr_attr attr{};
  fid_cntr *sends = nullptr, *receives = nullptr;
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &sends, nullptr), 0);
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &receives, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(a.ep, &sends->fid, FI_SEND), 0);
  ck_assert_int_eq(fi_ep_bind(b.ep, &receives->fid, FI_RECV), 0);
  const fi_addr_t to = a.insert(b);
  char in, out = 'o';
  fi_context context;
  fi_recv(b.ep, &in, 1, nullptr, FI_ADDR_UNSPEC, &context);
  fi_inject(a.ep, &out, 1, to);
  b.wait(&a);
  ck_assert_uint_eq(fi_cntr_read(sends), 1);
  ck_assert_uint_eq(fi_cntr_read(receives), 1);
  ck_assert_int_eq(fi_close(&sends->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&a.ep->fid), 0);
  ck_assert_int_eq(fi_close(&b.ep->fid), 0);
  a.ep = b.ep = nullptr;
  ck_assert_int_eq(fi_close(&sends->fid), 0);
  ck_assert_int_eq(fi_close(&receives->fid), 0);
}

TEST(parents_are_busy_while_children_live) {
  Root root;
  Port a(root);
  ck_assert_int_eq(fi_close(&root.domain->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&root.fabric->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&a.cq->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&a.av->fid), -FI_EBUSY);
}

TEST(closed_endpoint_leaves_no_completion_behind) {
  Root root;
  Port a(root), b(root);
  fid_cq* const cq = a.cq;
  const fi_addr_t to = a.insert(b);
  fi_context context;
  char in, out = 'o';
  fi_recv(a.ep, &in, 1, nullptr, FI_ADDR_UNSPEC, &context);
  const auto large = pattern(1 << 20);
  fi_tsend(a.ep, large.data(), large.size(), nullptr, to, 1, &context);
  fi_tsend(a.ep, &out, 1, nullptr, to, 1, &context);
  a.progress();
  ck_assert_int_eq(fi_close(&a.ep->fid), 0);
  a.ep = nullptr;
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
}

TEST(operations_before_enable_are_refused) {
  Root root;
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  char byte;
  ck_assert_int_eq(fi_send(ep, &byte, 1, nullptr, 0, nullptr), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_trecv(ep, &byte, 1, nullptr, 0, 0, 0, nullptr), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_cancel(&ep->fid, nullptr), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_enable(ep), -FI_ENOAV);
  fid_av* av = root.open_av();
  ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
  ck_assert_int_eq(fi_enable(ep), -FI_ENOCQ);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
  ck_assert_int_eq(fi_close(&av->fid), 0);
}

TEST(bad_arguments_are_refused) {
  Root root;
  Port a(root);
  fi_context context;
  char byte = 0;
  iovec five[5] = {};
  fi_addr_t self = a.insert(a);
  const size_t too_long = SIZE_MAX / 2 + 1;
  ck_assert_int_eq(fi_send(a.ep, nullptr, 1, nullptr, self, &context), -FI_EINVAL);
  ck_assert_int_eq(fi_send(a.ep, &byte, 1, nullptr, 55, &context), -FI_EINVAL);
  ck_assert_int_eq(fi_send(a.ep, &byte, 1, nullptr, FI_ADDR_UNSPEC, &context), -FI_EINVAL);
  ck_assert_int_eq(fi_send(a.ep, &byte, too_long, nullptr, self, &context), -FI_EMSGSIZE);
  ck_assert_int_eq(fi_sendv(a.ep, five, nullptr, 5, self, &context), -FI_EINVAL);
  ck_assert_int_eq(fi_sendv(a.ep, nullptr, nullptr, 1, self, &context), -FI_EINVAL);
  ck_assert_int_eq(fi_sendmsg(a.ep, nullptr, 0), -FI_EINVAL);
  fi_msg msg{five, nullptr, 1, self, &context, 0};
  ck_assert_int_eq(fi_sendmsg(a.ep, &msg, FI_PEEK), -FI_EBADFLAGS);
  ck_assert_int_eq(fi_recvmsg(a.ep, &msg, FI_CLAIM), -FI_EBADFLAGS);
  ck_assert_int_eq(fi_recvmsg(a.ep, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_inject(a.ep, &byte, 5000, self), -FI_EMSGSIZE);
  ck_assert_int_eq(fi_recv(a.ep, nullptr, 1, nullptr, FI_ADDR_UNSPEC, &context), -FI_EINVAL);
  ck_assert_int_eq(fi_recvv(a.ep, five, nullptr, 5, FI_ADDR_UNSPEC, &context), -FI_EINVAL);
  ck_assert_int_eq(fi_trecvmsg(a.ep, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_tsendmsg(a.ep, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_ep_bind(a.ep, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_ep_bind(a.ep, &a.cq->fid, FI_RECV), -FI_EOPBADSTATE);
  size_t length = 4;
  char name[64];
  ck_assert_int_eq(fi_getname(&a.ep->fid, nullptr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_getname(&a.ep->fid, name, &length), -FI_ETOOSMALL);
  ck_assert_uint_eq(length, sizeof(sockaddr_in));
  ck_assert_int_eq(fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, 9999, name, &length), -FI_ENOPROTOOPT);
  ck_assert_int_eq(fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, 9999, name, 8), -FI_ENOPROTOOPT);
  ck_assert_int_eq(fi_setopt(&a.ep->fid, 77, FI_OPT_MIN_MULTI_RECV, name, 8), -FI_ENOPROTOOPT);
  ck_assert_int_eq(fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, nullptr, 8),
                   -FI_EINVAL);
  ck_assert_int_eq(fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, name, 3),
                   -FI_EINVAL);
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, nullptr, &ep, nullptr), -FI_EINVAL);
}

TEST(options_without_hardware_are_declined_honestly) {
  Root root;
  Port a(root);
  constexpr int kCudaApiPermitted = 10, kSharedMemoryPermitted = 11, kInjectMsgSize = 16;
  const bool no = false, yes = true;
  for (const int option : {kCudaApiPermitted, kSharedMemoryPermitted}) {
    ck_assert_int_eq(fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, option, &no, sizeof(no)),
                     -FI_EOPNOTSUPP);
    ck_assert_int_eq(fi_setopt(&a.ep->fid, FI_OPT_ENDPOINT, option, &yes, sizeof(yes)), 0);
  }
  size_t size = 0, length = sizeof(size);
  ck_assert_int_eq(fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, kInjectMsgSize, &size, &length), 0);
  ck_assert_uint_ge(size, 4096);
}

TEST(threads_share_an_endpoint_under_thread_safe) {
  Ask ask;
  ask.threading = FI_THREAD_SAFE;
  Root root(ask);
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  constexpr int kThreads = 4, kMessages = 2000;
  std::atomic<int> received{0};
  std::vector<std::thread> threads;
  std::vector<uint64_t> values(kThreads * kMessages);
  std::vector<fi_context> contexts(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    fi_trecv(b.ep, &values[i], 8, nullptr, FI_ADDR_UNSPEC, i, 0, &contexts[i]);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kMessages; ++i) {
        const uint64_t value = uint64_t(t * kMessages + i);
        while (fi_tinject(a.ep, &value, 8, to, value) == -FI_EAGAIN) a.progress();
        fi_cq_tagged_entry entry;
        if (fi_cq_read(b.cq, &entry, 1) == 1) ++received;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  fi_cq_tagged_entry entry;
  while (received < int(values.size())) {
    if (fi_cq_read(b.cq, &entry, 1) == 1) ++received;
    a.progress();
  }
  for (size_t i = 0; i < values.size(); ++i) ck_assert_uint_eq(values[i], i);
}

TEST(auto_progress_delivers_while_the_receiver_does_nothing, 2) {
  Ask ask;
  ask.progress = FI_PROGRESS_AUTO;
  Root passive(ask), active;
  Port a(active), b(passive);
  const fi_addr_t to = a.insert(b);
  const auto message = pattern(_i == 0 ? 8 : 1 << 20);
  std::vector<char> buffer(message.size());
  fi_context context;
  ck_assert_int_eq(fi_recv(b.ep, buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC, &context),
                   0);
  const iovec iov{const_cast<char*>(message.data()), message.size()};
  fi_msg msg{&iov, nullptr, 1, to, &context, 0};
  ck_assert_int_eq(fi_sendmsg(a.ep, &msg, FI_DELIVERY_COMPLETE), 0);
  a.wait();  // no thread has called into b's domain until here
  b.wait();
  ck_assert(buffer == message);
}

TEST(sread_sleeps_until_a_message_comes) {
  Ask ask;
  ask.threading = FI_THREAD_SAFE;
  Root root(ask);
  Port a(root), b(root, FI_WAIT_FD);
  const fi_addr_t to = a.insert(b);
  char in = 0;
  fi_context context;
  fi_recv(b.ep, &in, 1, nullptr, FI_ADDR_UNSPEC, &context);
  std::thread sender([&] {
    char out = 'o';
    fi_send(a.ep, &out, 1, nullptr, to, &context);
    a.wait();
  });
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_sread(b.cq, &entry, 1, nullptr, -1), 1);
  ck_assert_int_eq(in, 'o');
  sender.join();
}

// The sleeping thread holds no lock and does not poll: the thread that sends must make sure that it
// wakes.
TEST(sleeping_reader_is_woken_by_what_another_thread_starts, 2) {
  Ask ask;
  ask.threading = FI_THREAD_SAFE;
  Root root(ask);
  Port a(root, FI_WAIT_FD), b(root);
  const fi_addr_t self = a.insert(a), to_a = b.insert(a);
  const auto message = pattern(1 << 20);
  std::vector<char> buffer(message.size());
  fi_context receive_context, send_context;
  std::atomic<bool> about_to_sleep{false}, done{false};
  std::thread sleeper([&] {
    fi_cq_tagged_entry entry;
    for (int received = 0; received < 1;) {
      about_to_sleep = true;
      ck_assert_int_eq(fi_cq_sread(a.cq, &entry, 1, nullptr, -1), 1);
      if (entry.flags & FI_RECV) ++received;
    }
    done = true;
  });
  while (!about_to_sleep) std::this_thread::yield();
  if (_i == 0) {  // a message to itself
    fi_trecv(a.ep, buffer.data(), 8, nullptr, FI_ADDR_UNSPEC, 7, 0, &receive_context);
    ck_assert_int_eq(fi_tsend(a.ep, message.data(), 8, nullptr, self, 7, &send_context), 0);
  } else {  // a receive that meets a large message already announced
    ck_assert_int_eq(
        fi_tsend(b.ep, message.data(), message.size(), nullptr, to_a, 7, &send_context), 0);
    for (int i = 0; i < 1000; ++i) b.progress();
    fi_trecv(a.ep, buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC, 7, 0, &receive_context);
  }
  while (!done) b.progress();
  sleeper.join();
  if (_i == 1) b.wait(&a);
}

TEST(forked_child_is_refused_and_the_parent_goes_on) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  exchange(a, b, to, 100);
  const pid_t child = erdma::test::quiet_fork();
  if (child == 0) {
    char byte = 0;
    const bool refused = fi_send(a.ep, &byte, 1, nullptr, to, nullptr) < 0 &&
                         fi_recv(b.ep, &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr) < 0;
    a.progress();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  exchange(a, b, to, 100000);
}

TEST(child_that_closes_what_it_inherited_leaves_the_parent_its_wake_up) {
  Root root;
  Port a(root), b(root, FI_WAIT_FD);
  const fi_addr_t to = a.insert(b);
  exchange(a, b, to, 100);
  const pid_t child = erdma::test::quiet_fork();
  if (child == 0) _exit(fi_close(&b.ep->fid) == 0 ? 0 : 1);
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  int fd = -1;
  ck_assert_int_eq(fi_control(&b.cq->fid, FI_GETWAIT, &fd), 0);
  char byte = 0;
  ck_assert_int_eq(fi_recv(b.ep, &byte, 1, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  fid_t watched[] = {&b.cq->fid};
  while (fi_trywait(root.fabric, watched, 1) != 0) {
  }
  ck_assert_int_eq(fi_inject(a.ep, &byte, 1, to), 0);
  pollfd waiting{fd, POLLIN, 0};
  ck_assert_int_eq(::poll(&waiting, 1, 10000), 1);
}

struct ThreadingCase {
  fi_threading threading;
  fi_progress control, data;
  bool many_data_calls;  ///< data calls of several threads exclude each other
  bool control_calls;    ///< control calls and data calls do
};
constexpr auto kControlUnified = fi_progress(FI_PROGRESS_MANUAL + 1);
constexpr ThreadingCase kThreadingCases[] = {
    {FI_THREAD_SAFE, FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL, true, true},
    {FI_THREAD_SAFE, kControlUnified, FI_PROGRESS_MANUAL, true, true},
    {FI_THREAD_UNSPEC, FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL, true, true},
    {FI_THREAD_FID, FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL, true, true},
    {FI_THREAD_DOMAIN, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, true, true},
    {FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO, true, true},
    {FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL, false, true},
    {FI_THREAD_DOMAIN, kControlUnified, FI_PROGRESS_MANUAL, false, false},
};

TEST(a_domain_locks_what_its_threading_needs, std::size(kThreadingCases)) {
  const ThreadingCase& c = kThreadingCases[_i];
  fi_info* const info = get_info();
  info->domain_attr->threading = c.threading;
  info->domain_attr->control_progress = c.control;
  info->domain_attr->data_progress = c.data;
  const Root root(info);
  erdma::util::DomainLock& lock = erdma::fabric::Domain::from(root.domain).lock();
  for (int i = 0; i < 100; ++i) const erdma::util::DataGuard guard(lock);  // opens a gate
  if (erdma::util::ThreadBarrier::available())
    ck_assert_int_eq(erdma::fake::waits(lock.data(), lock.data()), c.many_data_calls);
  ck_assert_int_eq(erdma::fake::waits(lock, lock.data()), c.control_calls);
}

TEST(child_forked_while_the_lock_is_held_closes_at_once) {
  Root root({.threading = FI_THREAD_SAFE});
  Port a(root, FI_WAIT_FD);
  std::atomic<bool> held{false}, forked{false};
  std::thread holder([&] {
    const std::lock_guard guard(erdma::fabric::Domain::from(root.domain).lock());
    held = true;
    held.notify_one();
    forked.wait(false);
  });
  held.wait(false);
  const pid_t child = erdma::test::quiet_fork();
  if (child == 0) {
    const bool closed = fi_close(&a.ep->fid) == 0 && fi_close(&a.cq->fid) == 0;
    _exit(closed ? 0 : 1);
  }
  forked = true;
  forked.notify_one();
  holder.join();
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}

TEST(objects_of_another_domain_are_not_bound) {
  Root root, other;
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  fid_cq* cq = other.open_cq();
  fid_av* av = other.open_av();
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(other.domain, nullptr, &cntr, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
  ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_ep_bind(ep, &cntr->fid, FI_SEND), -FI_EINVAL);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
  ck_assert_int_eq(fi_close(&cq->fid), 0);
  ck_assert_int_eq(fi_close(&av->fid), 0);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

}  // namespace
