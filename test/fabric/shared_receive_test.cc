// Tests endpoints that share their receives by fi_srx_context(3), over shared memory.
#include <atomic>
#include <set>
#include <thread>

#include <rdma/fi_trigger.h>

#include "fabric/cntr.h"
#include "fabric/domain.h"
#include "fabric/shared_receive_rig.h"

namespace {

using namespace erdma::test;

TEST_CASE(.set_up = on_shm);

TEST(every_form_of_receiving_works_on_a_context) {
  Shared shared;
  const auto message = pattern(64);
  std::vector<char> buffer(64);
  const iovec iov[2] = {{buffer.data(), 16}, {buffer.data() + 16, 48}};
  fi_context contexts[6];
  const fi_msg msg{iov, nullptr, 2, shared.source, &contexts[2], 0};
  const fi_msg_tagged tagged{iov, nullptr, 2, shared.source, 7, 0, &contexts[5], 0};
  for (int form = 0; form < 6; ++form) {
    fid_ep* const srx = shared.srx;
    const ssize_t rc =
        form == 0   ? fi_recv(srx, buffer.data(), 64, nullptr, shared.source, &contexts[0])
        : form == 1 ? fi_recvv(srx, iov, nullptr, 2, FI_ADDR_UNSPEC, &contexts[1])
        : form == 2 ? fi_recvmsg(srx, &msg, FI_COMPLETION)
        : form == 3 ? fi_trecv(srx, buffer.data(), 64, nullptr, shared.source, 7, 0, &contexts[3])
        : form == 4 ? fi_trecvv(srx, iov, nullptr, 2, FI_ADDR_UNSPEC, 0, ~0ull, &contexts[4])
                    : fi_trecvmsg(srx, &tagged, 0);
    ck_assert_int_eq(rc, 0);
    std::fill(buffer.begin(), buffer.end(), 'x');
    const fi_addr_t to = shared.to[form % 2];
    const ssize_t sent =
        form < 3 ? fi_send(shared.sender.ep, message.data(), 64, nullptr, to, nullptr)
                 : fi_tsend(shared.sender.ep, message.data(), 64, nullptr, to, 7, nullptr);
    ck_assert_int_eq(sent, 0);
    const fi_cq_tagged_entry entry = shared.wait();
    shared.sender.wait();
    ck_assert_ptr_eq(entry.op_context, &contexts[form]);
    ck_assert_uint_eq(entry.flags, FI_RECV | (form < 3 ? FI_MSG : FI_TAGGED));
    ck_assert_uint_eq(entry.len, 64);
    ck_assert(buffer == message);
  }
}

/// A context that names no capabilities has those of the domain.
TEST(a_source_is_heard_only_if_it_was_named, 4) {
  const bool counts = _i < 3;  // the source of a receive
  const WithCaps with[] = {WithCaps::own, WithCaps::none, WithCaps::no_attr, WithCaps::no_attr};
  const Ask ask{.caps = FI_MSG | FI_TAGGED | (counts ? FI_DIRECTED_RECV : 0)};
  Shared shared(ask, FI_WAIT_NONE, 0, with[_i]);
  char bytes[8] = {};
  fi_context directed, any;
  ck_assert_int_eq(fi_trecv(shared.srx, bytes, 8, nullptr, insert(shared.av, shared.one.name()), 7,
                            0, &directed),
                   0);
  ck_assert_int_eq(fi_trecv(shared.srx, bytes, 8, nullptr, FI_ADDR_UNSPEC, 7, 0, &any), 0);
  shared.tsend(1, bytes, 8, 7);
  fi_context* const other = counts ? &directed : &any;
  ck_assert_ptr_eq(shared.wait().op_context, counts ? &any : &directed);
  ck_assert_int_eq(fi_cancel(&shared.srx->fid, other), 0);
  const fi_cq_err_entry error = shared.wait_error();
  ck_assert_int_eq(error.err, FI_ECANCELED);
  ck_assert_ptr_eq(error.op_context, other);
  ck_assert_int_eq(fi_cancel(&shared.srx->fid, other), -FI_ENOENT);
}

TEST(a_member_itself_takes_no_receive) {
  Shared shared;
  char bytes[8] = {};
  ck_assert_int_eq(fi_recv(shared.one.ep, bytes, 8, nullptr, FI_ADDR_UNSPEC, nullptr),
                   -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_trecv(shared.one.ep, bytes, 8, nullptr, FI_ADDR_UNSPEC, 0, 0, nullptr),
                   -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_send(shared.srx, bytes, 8, nullptr, 0, nullptr), -FI_ENOSYS);
  size_t length = 8;
  ck_assert_int_eq(fi_getname(&shared.srx->fid, bytes, &length), -FI_ENOSYS);
  ck_assert_int_eq(fi_ep_bind(shared.srx, &shared.cq->fid, FI_RECV), -FI_ENOSYS);
  ck_assert_int_eq(fi_enable(shared.srx), 0);
}

/// Nothing else wakes the thread that waits for the work.
TEST(a_cancelled_receive_runs_the_works_that_wait_for_its_counter) {
  Ask ask;
  ask.caps = FI_MSG | FI_TAGGED | FI_TRIGGER;
  ask.threading = FI_THREAD_SAFE;
  Shared shared(ask);
  fid_cntr *received = nullptr, *done = nullptr;
  fi_cntr_attr attr{};
  attr.wait_obj = FI_WAIT_UNSPEC;
  for (fid_cntr** cntr : {&received, &done})
    ck_assert_int_eq(fi_cntr_open(shared.root.domain, &attr, cntr, nullptr), 0);
  for (const Member* member : {&shared.one, &shared.two})
    ck_assert_int_eq(fi_ep_bind(member->ep, &received->fid, FI_RECV), 0);
  fi_op_cntr add{done, 1};
  fi_deferred_work work{};
  work.threshold = 1;
  work.triggering_cntr = received;
  work.op_type = FI_OP_CNTR_ADD;
  work.op.cntr = &add;
  ck_assert_int_eq(fi_control(&shared.root.domain->fid, FI_QUEUE_WORK, &work), 0);
  fi_context context;
  char byte;
  ck_assert_int_eq(fi_recv(shared.srx, &byte, 1, nullptr, FI_ADDR_UNSPEC, &context), 0);
  std::thread sleeper([&] { ck_assert_int_eq(fi_cntr_wait(done, 1, -1), 0); });
  for (bool asleep = false; !asleep; sched_yield()) {
    const erdma::util::Guard guard(erdma::fabric::Domain::from(&shared.root.domain->fid).lock());
    asleep = erdma::fabric::Counter::from(&done->fid).sleeping();
  }
  ck_assert_int_eq(fi_cancel(&shared.srx->fid, &context), 0);
  sleeper.join();
  ck_assert_int_eq(shared.wait_error().err, FI_ECANCELED);
  for (Member* member : {&shared.one, &shared.two})
    ck_assert_int_eq(fi_close(&std::exchange(member->ep, nullptr)->fid), 0);
  for (fid_cntr* cntr : {received, done}) ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(no_receive_of_a_member_waits_for_a_counter) {
  Ask ask;
  ask.caps = FI_MSG | FI_TAGGED | FI_TRIGGER;
  ask.threading = FI_THREAD_SAFE;
  Shared shared(ask);
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(shared.root.domain, nullptr, &cntr, nullptr), 0);
  char byte = 0;
  const iovec iov{&byte, 1};
  fi_context context;
  fi_op_msg op{shared.one.ep, {&iov, nullptr, 1, FI_ADDR_UNSPEC, &context, 0}, 0};
  fi_deferred_work work{};
  work.threshold = 1;
  work.triggering_cntr = cntr;
  work.op_type = FI_OP_RECV;
  work.op.msg = &op;
  ck_assert_int_eq(fi_control(&shared.root.domain->fid, FI_QUEUE_WORK, &work), -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

TEST(a_context_outlives_its_endpoints) {
  Shared shared;
  char bytes[8] = {};
  fi_context context;
  ck_assert_int_eq(fi_close(&shared.srx->fid), -FI_EBUSY);
  shared.tsend(0, "gone   ", 8, 7);
  // An unexpected message is dropped with its endpoint; completed receives stay readable.
  ck_assert_int_eq(fi_recv(shared.srx, bytes, 8, nullptr, FI_ADDR_UNSPEC, &context), 0);
  ck_assert_int_eq(fi_send(shared.sender.ep, "received", 8, nullptr, shared.to[0], nullptr), 0);
  shared.sender.wait();
  while (bytes[0] != 'r') fi_cq_read(shared.cq, nullptr, 0);
  ck_assert_int_eq(fi_close(&shared.one.ep->fid), 0);
  shared.one.ep = nullptr;
  ck_assert_ptr_eq(shared.wait().op_context, &context);
  ck_assert_int_eq(fi_trecv(shared.srx, bytes, 8, nullptr, FI_ADDR_UNSPEC, 7, 0, &context), 0);
  shared.tsend(1, "here   ", 8, 7);
  ck_assert_ptr_eq(shared.wait().op_context, &context);
  ck_assert_str_eq(bytes, "here   ");
}

TEST(nothing_is_cancelled_where_nobody_could_say_so) {
  Root root;
  fid_ep* srx = open_context(root);
  char bytes[8];
  fi_context context;
  ck_assert_int_eq(fi_recv(srx, bytes, 8, nullptr, FI_ADDR_UNSPEC, &context), 0);
  ck_assert_int_eq(fi_recv(srx, bytes, 8, nullptr, 0, &context), -FI_ENOAV);
  ck_assert_int_eq(fi_cancel(&srx->fid, &context), -FI_ENOCQ);
  const fi_msg_tagged peek{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 7, 0, &context, 0};
  ck_assert_int_eq(fi_trecvmsg(srx, &peek, FI_PEEK), -FI_ENOCQ);
  ck_assert_int_eq(fi_close(&srx->fid), 0);
}

TEST(endpoints_of_a_context_have_one_av) {
  Shared shared;
  fid_av* av = shared.root.open_av();
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(shared.root.domain, shared.root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &shared.cq->fid, FI_TRANSMIT | FI_RECV), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &shared.srx->fid, 0), 0);
  ck_assert_int_eq(fi_enable(ep), -FI_EINVAL);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
  ck_assert_int_eq(fi_close(&av->fid), 0);
}

TEST(selective_completion_is_that_of_the_endpoint) {
  Shared shared({}, FI_WAIT_NONE, FI_SELECTIVE_COMPLETION);
  char bytes[8] = {};
  fi_context silent, told;
  const iovec iov{bytes, 8};
  const fi_msg_tagged flagged{&iov, nullptr, 1, FI_ADDR_UNSPEC, 7, 0, &told, 0};
  ck_assert_int_eq(fi_trecv(shared.srx, bytes, 8, nullptr, FI_ADDR_UNSPEC, 7, 0, &silent), 0);
  ck_assert_int_eq(fi_trecvmsg(shared.srx, &flagged, FI_COMPLETION), 0);
  shared.tsend(0, "first  ", 8, 7);
  shared.tsend(1, "second ", 8, 7);
  ck_assert_ptr_eq(shared.wait().op_context, &told);
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(int(fi_cq_read(shared.cq, &entry, 1)), -FI_EAGAIN);
}

TEST(the_smallest_rest_of_a_buffer_is_an_option) {
  Shared shared;
  size_t bytes = 100, length = sizeof(bytes);
  fid_t const fid = &shared.srx->fid;
  ck_assert_int_eq(fi_setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &bytes, length), 0);
  bytes = 0;
  ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &bytes, &length), 0);
  ck_assert_uint_eq(bytes, 100);
  std::vector<char> buffer(200);
  fi_context context;
  const iovec iov{buffer.data(), buffer.size()};
  const fi_msg msg{&iov, nullptr, 1, FI_ADDR_UNSPEC, &context, 0};
  ck_assert_int_eq(fi_recvmsg(shared.srx, &msg, FI_MULTI_RECV), 0);
  for (int i = 0; i < 2; ++i) {
    ck_assert_int_eq(fi_send(shared.sender.ep, buffer.data(), 60, nullptr, shared.to[i], nullptr),
                     0);
    const fi_cq_tagged_entry entry = shared.wait();
    shared.sender.wait();
    ck_assert_ptr_eq(entry.buf, buffer.data() + 60 * i);
    ck_assert_int_eq((entry.flags & FI_MULTI_RECV) != 0, i == 1);
  }
}

TEST(attributes_that_are_not_offered_are_refused) {
  Root root;
  fid_ep* srx = nullptr;
  fi_rx_attr attr = *root.info->rx_attr;
  attr.caps = FI_MSG | FI_COLLECTIVE;
  ck_assert_int_eq(fi_srx_context(root.domain, &attr, &srx, nullptr), -FI_EINVAL);
  attr = *root.info->rx_attr;
  attr.iov_limit = 100;
  ck_assert_int_eq(fi_srx_context(root.domain, &attr, &srx, nullptr), -FI_EINVAL);
  ck_assert_ptr_null(srx);
  attr = *root.info->rx_attr;
  attr.size = 100'000;  // receives never run out
  for (fi_rx_attr* given : {&attr, static_cast<fi_rx_attr*>(nullptr)}) {
    ck_assert_int_eq(fi_srx_context(root.domain, given, &srx, nullptr), 0);
    ck_assert_int_eq(fi_close(&srx->fid), 0);
  }
  ck_assert_uint_ge(root.info->domain_attr->max_ep_srx_ctx, 1);
}

/// Two threads post receives, one per message, while two send and one reads: each receive completes
/// once.
TEST(threads_share_a_context, 2) {
  constexpr int kMessages = 2000;
  Ask ask;
  ask.threading = FI_THREAD_SAFE;
  ask.progress = _i ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
  Shared shared(ask, FI_WAIT_FD);
  std::vector<uint64_t> buffers(2 * kMessages);
  std::vector<fi_context> contexts(2 * kMessages);
  std::atomic<int> failed{0};
  const auto post = [&](int thread) {
    for (int i = thread * kMessages; i < (thread + 1) * kMessages; ++i)
      if (fi_recv(shared.srx, &buffers[size_t(i)], 8, nullptr, FI_ADDR_UNSPEC,
                  &contexts[size_t(i)]))
        ++failed;
  };
  const auto send = [&](int thread) {
    for (uint64_t i = 0; i < kMessages; ++i) {
      const uint64_t value = uint64_t(thread) * kMessages + i + 1;
      ssize_t rc;
      while ((rc = fi_inject(shared.sender.ep, &value, 8, shared.to[i % 2])) == -FI_EAGAIN)
        shared.sender.progress();
      if (rc) ++failed;
    }
  };
  std::thread threads[4];
  for (int i = 0; i < 2; ++i) threads[i] = std::thread(post, i);
  for (int i = 0; i < 2; ++i) threads[2 + i] = std::thread(send, i);
  std::set<void*> seen;
  while (seen.size() < 2 * kMessages) {
    fi_cq_tagged_entry entry;
    const ssize_t rc = fi_cq_sread(shared.cq, &entry, 1, nullptr, 20);
    shared.sender.progress();
    if (rc == -FI_EAGAIN) continue;
    ck_assert_int_eq(int(rc), 1);
    ck_assert(seen.insert(entry.op_context).second);
  }
  for (std::thread& thread : threads) thread.join();
  ck_assert_int_eq(failed, 0);
  ck_assert_uint_eq(std::set<uint64_t>(buffers.begin(), buffers.end()).size(), 2 * kMessages);
}

}  // namespace
