#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "fabric/rig.h"

// Completion queues as applications use them: through the provider's entry points only.
using namespace erdma::test;

namespace {

constexpr int kForever = -1;

int open_error(Root& root, const fi_cq_attr* attr) {
  fid_cq* cq = nullptr;
  const int rc = fi_cq_open(root.domain, const_cast<fi_cq_attr*>(attr), &cq, nullptr);
  ck_assert_ptr_null(cq);
  return rc;
}

void send(Port& from, fi_addr_t to, uint64_t tag) {
  ssize_t rc;
  while ((rc = fi_tinject(from.ep, nullptr, 0, to, tag)) == -FI_EAGAIN) from.progress();
  ck_assert_int_eq(rc, 0);
}

/// A peer that sends one message and makes progress until its destruction.
class Sender {
 public:
  Sender(Port& from, fi_addr_t to, uint64_t tag)
      : x_thread([this, &from, to, tag] {
          send(from, to, tag);
          while (!x_over) from.progress();
        }) {}
  ~Sender() {
    x_over = true;
    x_thread.join();
  }

 private:
  std::atomic<bool> x_over{false};
  std::thread x_thread;
};

void post(Port& port) {
  ck_assert_int_eq(fi_trecv(port.ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, UINT64_MAX, nullptr),
                   0);
}

}  // namespace

TEST(cq_opens_with_any_size_and_closes) {
  Root root;
  for (size_t size = 0; size <= 65536; size = size ? size * 2 : 1)
    for (fi_wait_obj wait : {FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD})
      ck_assert_int_eq(fi_close(&root.open_cq(FI_CQ_FORMAT_UNSPEC, wait, size)->fid), 0);
}

TEST(cq_open_refuses_bad_arguments) {
  Root root;
  fi_cq_attr attr{};
  ck_assert_int_eq(open_error(root, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_cq_open(root.domain, &attr, nullptr, nullptr), -FI_EINVAL);
  attr.wait_obj = FI_WAIT_SET;  // without a set
  ck_assert_int_eq(open_error(root, &attr), -FI_EINVAL);
  attr.wait_obj = FI_WAIT_NONE;
  attr.flags = FI_MULTI_RECV;
  ck_assert_int_eq(open_error(root, &attr), -FI_EINVAL);
}

TEST(domain_and_cq_are_busy_while_used) {
  Root root;
  {
    Port port(root);
    ck_assert_int_eq(fi_close(&port.cq->fid), -FI_EBUSY);
    ck_assert_int_eq(fi_close(&root.domain->fid), -FI_EBUSY);
  }
  fid_cq* cq = root.open_cq();
  ck_assert_int_eq(fi_close(&root.domain->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&cq->fid), 0);
}

/// As applications print it (fi_cq(3), fi_cq_strerror).
TEST(text_of_an_error_names_its_cause) {
  Root root;
  Port port(root);
  post(port);
  ck_assert_int_eq(fi_cancel(&port.ep->fid, nullptr), 0);
  const fi_cq_err_entry error = port.wait_error();
  ck_assert_int_eq(error.err, FI_ECANCELED);
  const char* text = fi_cq_strerror(port.cq, error.prov_errno, error.err_data, nullptr, 0);
  ck_assert_str_eq(text, fi_strerror(FI_ECANCELED));
}

TEST(signal_ends_a_blocking_read) {
  Root root;
  Port port(root, FI_WAIT_UNSPEC);
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_sread(port.cq, &entry, 1, nullptr, 1), -FI_EAGAIN);
  ck_assert_int_eq(fi_cq_signal(port.cq), 0);
  ck_assert_int_eq(fi_cq_sread(port.cq, &entry, 1, nullptr, kForever), -FI_EAGAIN);
}

/// The handler may come before the thread sleeps, so it is called until the thread is back.
TEST(signal_of_the_system_ends_a_blocking_read) {
  Root root;
  fid_cq* const cq = root.open_cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_UNSPEC);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ck_assert_int_eq(sigaction(SIGUSR1, &action, nullptr), 0);
  std::atomic<bool> back{false};
  ssize_t result = 0;
  std::thread reader([&] {
    fi_cq_tagged_entry entry;
    result = fi_cq_sread(cq, &entry, 1, nullptr, kForever);
    back = true;
  });
  while (!back) {
    pthread_kill(reader.native_handle(), SIGUSR1);
    sched_yield();
  }
  reader.join();
  ck_assert_int_eq(result, -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&cq->fid), 0);
}

TEST(message_of_another_domain_wakes_a_blocking_read, 2) {
  Root root({.threading = FI_THREAD_SAFE, .progress = _i ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL});
  Root other({.threading = FI_THREAD_SAFE});
  Port receiver(root, FI_WAIT_FD);
  Port sender(other);
  const fi_addr_t to = sender.insert(receiver);
  for (uint64_t i = 0; i < 100; ++i) {
    post(receiver);
    const Sender peer(sender, to, i);
    fi_cq_tagged_entry entry{};
    ck_assert_int_eq(fi_cq_sread(receiver.cq, &entry, 1, nullptr, kForever), 1);
    ck_assert_uint_eq(entry.tag, i);
  }
}

TEST(message_of_another_domain_makes_the_descriptor_readable, 2) {
  Root root({.progress = _i ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL});
  Root other;
  Port receiver(root, FI_WAIT_FD);
  Port sender(other);
  const fi_addr_t to = sender.insert(receiver);
  int fd = -1;
  ck_assert_int_eq(fi_control(&receiver.cq->fid, FI_GETWAIT, &fd), 0);
  fid* fids[] = {&receiver.cq->fid};
  for (uint64_t i = 0; i < 100; ++i) {
    post(receiver);
    const Sender peer(sender, to, i);
    fi_cq_tagged_entry entry{};
    ssize_t rc;
    while ((rc = fi_cq_read(receiver.cq, &entry, 1)) == -FI_EAGAIN) {
      pollfd waiting{fd, POLLIN, 0};
      if (fi_trywait(root.fabric, fids, 1) == 0) ck_assert_int_eq(poll(&waiting, 1, kForever), 1);
    }
    ck_assert_int_eq(rc, 1);
    ck_assert_uint_eq(entry.tag, i);
  }
}

TEST(completions_of_a_closed_endpoint_are_gone) {
  Root root;
  Port port(root);
  post(port);
  send(port, port.insert(port), 1);
  while (fi_cq_read(port.cq, nullptr, 0) == -FI_EAGAIN) {
  }
  ck_assert_int_eq(fi_close(&port.ep->fid), 0);
  port.ep = nullptr;
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_read(port.cq, &entry, 1), -FI_EAGAIN);
}
