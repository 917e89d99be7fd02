// Poll sets as applications use them: fi_poll(3).
#include <atomic>
#include <thread>

#include "fabric/rig.h"

// libfabric 2 deprecates poll sets; applications of API 1.x use them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;

fid_eq* open_eq(Root& root, void* context) {
  fi_eq_attr attr{};
  attr.flags = FI_WRITE;
  fid_eq* eq = nullptr;
  ck_assert_int_eq(fi_eq_open(root.fabric, &attr, &eq, context), 0);
  return eq;
}

void write(fid_eq* eq) {
  const fi_eq_entry entry{};
  ck_assert_int_eq(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
}

fid_cntr* open_counter(Root& root, void* context) {
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(root.domain, nullptr, &cntr, context), 0);
  return cntr;
}

struct Poll {
  explicit Poll(Root& root) {
    fi_poll_attr attr{};
    ck_assert_int_eq(fi_poll_open(root.domain, &attr, &set), 0);
  }
  ~Poll() {
    if (set) close();
  }
  void close() {
    ck_assert_int_eq(fi_close(&set->fid), 0);
    set = nullptr;
  }
  void add(fid_t object) { ck_assert_int_eq(fi_poll_add(set, object, 0), 0); }
  void remove(fid_t object) { ck_assert_int_eq(fi_poll_del(set, object, 0), 0); }
  /// The single context with news, or null.
  void* news() {
    void* contexts[4] = {};
    const int found = fi_poll(set, contexts, 4);
    ck_assert_msg(found == 0 || found == 1, "%d", found);
    return contexts[0];
  }
  void* await() {
    for (;;)
      if (void* context = news()) return context;
  }

  fid_poll* set = nullptr;
};

void post(Port& port, void* context) {
  ck_assert_int_eq(fi_trecv(port.ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, UINT64_MAX, context),
                   0);
}

void send(Port& from, fi_addr_t to, Poll& poll) {
  ssize_t rc;
  while ((rc = fi_tinject(from.ep, nullptr, 0, to, 0)) == -FI_EAGAIN) poll.news();
  ck_assert_int_eq(rc, 0);
}

int g_first, g_second;

TEST(a_poll_drives_queues_and_tells_the_one_that_has_something) {
  Root root;
  Port a(root), b(root);
  Poll poll(root);
  a.cq->fid.context = &g_first;
  b.cq->fid.context = &g_second;
  poll.add(&a.cq->fid);
  poll.add(&b.cq->fid);
  ck_assert_ptr_null(poll.news());
  post(b, nullptr);
  const fi_addr_t to = a.insert(b);
  send(a, to, poll);
  ck_assert_ptr_eq(poll.await(), &g_second);
  ck_assert_ptr_eq(poll.news(), &g_second);  // the completion is still unread
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_read(b.cq, &entry, 1), 1);
  ck_assert_ptr_null(poll.news());
}

TEST(an_error_of_a_queue_is_told_until_it_is_read) {
  Root root;
  Port port(root);
  Poll poll(root);
  port.cq->fid.context = &g_first;
  poll.add(&port.cq->fid);
  post(port, &g_second);
  ck_assert_int_eq(fi_cancel(&port.ep->fid, &g_second), 0);
  ck_assert_ptr_eq(poll.news(), &g_first);
  fi_cq_err_entry error{};
  ck_assert_int_eq(fi_cq_readerr(port.cq, &error, 0), 1);
  ck_assert_ptr_null(poll.news());
}

TEST(a_counter_is_told_once_for_each_change_that_the_application_did_not_make) {
  Root root;
  Port port(root);
  Poll poll(root);
  fid_cntr* cntr = open_counter(root, &g_first);
  ck_assert_int_eq(fi_ep_bind(port.ep, &cntr->fid, FI_RECV), 0);
  poll.add(&cntr->fid);
  const fi_addr_t self = port.insert(port);
  post(port, nullptr);
  send(port, self, poll);
  ck_assert_ptr_eq(poll.await(), &g_first);
  ck_assert_ptr_null(poll.news());
  post(port, &g_second);
  ck_assert_int_eq(fi_cntr_add(cntr, 5), 0);
  ck_assert_int_eq(fi_cntr_adderr(cntr, 5), 0);
  ck_assert_ptr_null(poll.news());
  ck_assert_int_eq(fi_cancel(&port.ep->fid, &g_second), 0);
  ck_assert_int_eq(fi_cntr_add(cntr, 5), 0);  // the change must not hide an event
  ck_assert_ptr_eq(poll.news(), &g_first);
  ck_assert_ptr_null(poll.news());
  ck_assert_int_eq(fi_cntr_set(cntr, 0), 0);
  ck_assert_int_eq(fi_cntr_seterr(cntr, 0), 0);
  ck_assert_ptr_null(poll.news());
  poll.close();
  ck_assert_int_eq(fi_close(&port.ep->fid), 0);
  port.ep = nullptr;
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(what_an_array_has_no_room_for_comes_with_the_next_call) {
  Root root;
  int contexts[3];
  fid_eq* queues[3];
  fid_cntr* cntr = open_counter(root, &g_first);
  Poll poll(root);
  for (int i = 0; i < 3; ++i) {
    queues[i] = open_eq(root, &contexts[i]);
    write(queues[i]);
    poll.add(&queues[i]->fid);
  }
  poll.add(&cntr->fid);
  ck_assert_int_eq(fi_poll(poll.set, nullptr, 0), 0);
  bool told[3] = {};
  for (int i = 0; i < 3; ++i) {
    void* context = nullptr;
    ck_assert_int_eq(fi_poll(poll.set, &context, 1), 1);
    told[static_cast<int*>(context) - contexts] = true;
  }
  ck_assert(told[0] && told[1] && told[2]);
  void* all[4];
  ck_assert_int_eq(fi_poll(poll.set, all, 4), 3);
  poll.close();
  for (fid_eq* eq : queues) ck_assert_int_eq(fi_close(&eq->fid), 0);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

/// A change that found no room in the array is reported by a later call.
TEST(a_counter_that_was_left_out_is_told_later) {
  Root root;
  Port port(root);
  fid_cntr* cntr = open_counter(root, &g_second);
  ck_assert_int_eq(fi_ep_bind(port.ep, &cntr->fid, FI_RECV), 0);
  Poll poll(root);
  port.cq->fid.context = &g_first;
  poll.add(&port.cq->fid);
  poll.add(&cntr->fid);
  post(port, &g_first);
  ck_assert_int_eq(fi_cancel(&port.ep->fid, &g_first), 0);
  void* context = nullptr;
  ck_assert_int_eq(fi_poll(poll.set, &context, 1), 1);
  ck_assert_ptr_eq(context, &g_first);
  ck_assert_int_eq(fi_poll(poll.set, &context, 1), 1);
  ck_assert_ptr_eq(context, &g_second);
  poll.close();
  ck_assert_int_eq(fi_close(&port.ep->fid), 0);
  port.ep = nullptr;
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(members_can_not_be_closed_until_they_or_the_set_leave) {
  Root root;
  Poll poll(root);
  fid_eq* eq = open_eq(root, nullptr);
  fid_cntr* cntr = open_counter(root, nullptr);
  fid_cq* cq = root.open_cq();
  for (fid_t member : {&eq->fid, &cntr->fid, &cq->fid}) {
    poll.add(member);
    ck_assert_int_eq(fi_close(member), -FI_EBUSY);
    poll.remove(member);
    poll.add(member);
  }
  ck_assert_int_eq(fi_close(&root.domain->fid), -FI_EBUSY);
  poll.remove(&cq->fid);
  ck_assert_int_eq(fi_close(&cq->fid), 0);
  ck_assert_ptr_null(poll.news());
  poll.close();
  ck_assert_int_eq(fi_close(&eq->fid), 0);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(an_open_set_keeps_its_domain) {
  Root root;
  Poll poll(root);
  ck_assert_int_eq(fi_close(&root.domain->fid), -FI_EBUSY);
}

TEST(bad_arguments_are_refused) {
  Root root({.threading = FI_THREAD_SAFE}), other({.threading = FI_THREAD_SAFE});
  Poll poll(root);
  fid_cq *ours = root.open_cq(), *theirs = other.open_cq();
  fi_poll_attr flagged{};
  flagged.flags = 1;
  fid_poll* none = nullptr;
  ck_assert_int_eq(fi_poll_open(root.domain, &flagged, &none), -FI_EINVAL);
  ck_assert_ptr_null(none);
  ck_assert_int_eq(fi_poll_open(root.domain, nullptr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_poll_add(poll.set, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_poll_add(poll.set, &ours->fid, 1), -FI_EINVAL);
  ck_assert_int_eq(fi_poll_add(poll.set, &theirs->fid, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_poll_add(poll.set, &root.domain->fid, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_poll_del(poll.set, &ours->fid, 0), -FI_EINVAL);
  poll.add(&ours->fid);
  ck_assert_int_eq(fi_poll_add(poll.set, &ours->fid, 0), -FI_EALREADY);
  void* context = nullptr;
  ck_assert_int_eq(fi_poll(poll.set, &context, -1), -FI_EINVAL);
  ck_assert_int_eq(fi_poll(poll.set, nullptr, 1), -FI_EINVAL);
  ck_assert_int_eq(fi_poll_del(poll.set, &ours->fid, 1), -FI_EINVAL);
  poll.remove(&ours->fid);
  ck_assert_int_eq(fi_close(&ours->fid), 0);
  ck_assert_int_eq(fi_close(&theirs->fid), 0);
}

TEST(members_come_and_go_while_another_thread_polls) {
  Root root({.threading = FI_THREAD_SAFE});
  Port port(root);
  Poll poll(root);
  port.cq->fid.context = &g_first;
  poll.add(&port.cq->fid);
  std::atomic<bool> over{false};
  std::thread poller([&] {
    while (!over) poll.news();
  });
  for (int i = 0; i < 500; ++i) {
    fid_cq* cq = root.open_cq();
    fid_cntr* cntr = open_counter(root, nullptr);
    poll.add(&cq->fid);
    poll.add(&cntr->fid);
    poll.remove(&cq->fid);
    poll.remove(&cntr->fid);
    ck_assert_int_eq(fi_close(&cq->fid), 0);
    ck_assert_int_eq(fi_close(&cntr->fid), 0);
  }
  over = true;
  poller.join();
}

}  // namespace
