// fi_trigger(3): operations that wait for counters, and aliases that post them; over shared memory.
#include <cstring>

#include "fabric/trigger_rig.h"

namespace {

using namespace erdma::test;

TEST_CASE(.set_up = on_shm);

TEST(an_operation_waits_for_its_counter_and_completes_as_without) {
  TriggerWorld world;
  char text[8] = "before ", received[8] = {};
  const iovec iov{text, 8};
  fi_triggered_context context = world.condition(2);
  fi_context receive;
  const fi_msg msg{&iov, nullptr, 1, world.to, &context, 0};
  ck_assert_int_eq(fi_recv(world.b.ep, received, 8, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), 0);
  world.add();
  world.expect_silence();
  // The buffer is read when the message is sent, not before.
  std::memcpy(text, "after  ", 8);
  world.add();
  ck_assert_ptr_eq(world.a.wait(&world.b).op_context, &context);
  ck_assert_ptr_eq(world.b.wait(&world.a).op_context, &receive);
  ck_assert_str_eq(received, "after  ");
  world.expect_silence();
}

TEST(every_form_with_flags_can_be_triggered, 9) {
  TriggerWorld world;
  char text[64] = "triggered", received[64] = {};
  const iovec iov{text, 64}, into{received, 64};
  const fi_rma_iov remote{world.at(0), 64, world.region.key()};
  uint64_t operand = 5, fetched = 1;
  const fi_ioc ioc{&operand, 1};
  fi_ioc result{&fetched, 1};
  const fi_rma_ioc target{world.at(128), 1, world.region.key()};
  fi_triggered_context context = world.condition(uint64_t(_i) + 1);
  const fi_msg msg{&iov, nullptr, 1, world.to, &context, 0};
  const fi_msg into_msg{&into, nullptr, 1, FI_ADDR_UNSPEC, &context, 0};
  const fi_msg_tagged tagged{&iov, nullptr, 1, world.to, 7, 0, &context, 0};
  const fi_msg_tagged into_tagged{&into, nullptr, 1, FI_ADDR_UNSPEC, 7, 0, &context, 0};
  const fi_msg_rma rma{&iov, nullptr, 1, world.to, &remote, 1, &context, 0};
  const fi_msg_atomic atomic{&ioc, nullptr,   1,      world.to, &target,
                             1,    FI_UINT64, FI_SUM, &context, 0};
  const fi_msg_atomic swap{&ioc, nullptr,   1,        world.to, &target,
                           1,    FI_UINT64, FI_CSWAP, &context, 0};
  fid_ep *const a = world.a.ep, *const b = world.b.ep;
  uint64_t flags = 0;
  Port* port = &world.a;
  ssize_t rc = -FI_EINVAL;
  switch (_i) {
    case 0:
      rc = fi_sendmsg(a, &msg, FI_TRIGGER | FI_INJECT);
      flags = FI_SEND | FI_MSG;
      break;
    case 1:
      rc = fi_tsendmsg(a, &tagged, FI_TRIGGER | FI_DELIVERY_COMPLETE);
      flags = FI_SEND | FI_TAGGED;
      break;
    case 2:
      rc = fi_recvmsg(b, &into_msg, FI_TRIGGER);
      flags = FI_RECV | FI_MSG;
      port = &world.b;
      break;
    case 3:
      rc = fi_trecvmsg(b, &into_tagged, FI_TRIGGER);
      flags = FI_RECV | FI_TAGGED;
      port = &world.b;
      break;
    case 4:
      rc = fi_writemsg(a, &rma, FI_TRIGGER);
      flags = FI_RMA | FI_WRITE;
      break;
    case 5:
      rc = fi_readmsg(a, &rma, FI_TRIGGER);
      flags = FI_RMA | FI_READ;
      break;
    case 6:
      rc = fi_atomicmsg(a, &atomic, FI_TRIGGER | FI_INJECT);
      flags = FI_ATOMIC | FI_WRITE;
      operand = 99;
      break;
    case 7:
      rc = fi_fetch_atomicmsg(a, &atomic, &result, nullptr, 1, FI_TRIGGER);
      flags = FI_ATOMIC | FI_READ;
      break;
    default:
      rc = fi_compare_atomicmsg(a, &swap, &result, nullptr, 1, &result, nullptr, 1, FI_TRIGGER);
      flags = FI_ATOMIC | FI_READ;
  }
  ck_assert_int_eq(rc, 0);
  // The matching operation is posted first.
  fi_context other;
  if (_i == 0) ck_assert_int_eq(fi_recv(b, received, 64, nullptr, FI_ADDR_UNSPEC, &other), 0);
  if (_i == 1)
    ck_assert_int_eq(fi_trecv(b, received, 64, nullptr, FI_ADDR_UNSPEC, 7, 0, &other), 0);
  if (_i == 2) ck_assert_int_eq(fi_inject(a, text, 64, world.to), 0);
  if (_i == 3) ck_assert_int_eq(fi_tinject(a, text, 64, world.to, 7), 0);
  std::memcpy(world.memory.data() + 64, "untouched", 10);
  if (_i == 0) std::memset(text, 0, 64);
  world.add(uint64_t(_i));
  world.expect_silence();
  world.add();
  const fi_cq_tagged_entry entry = port->wait(port == &world.a ? &world.b : &world.a);
  ck_assert_ptr_eq(entry.op_context, &context);
  ck_assert_uint_eq(entry.flags, flags);
  if (_i < 2) world.b.wait(&world.a);
  if (_i < 4) ck_assert_str_eq(received, "triggered");
  if (_i == 4) ck_assert_str_eq(world.memory.data(), "triggered");
  uint64_t cell;
  std::memcpy(&cell, world.memory.data() + 128, 8);
  if (_i == 6) ck_assert_uint_eq(cell, 5);
  if (_i == 7) ck_assert_uint_eq(fetched, 0);
  world.expect_silence();
}

/// FI_INJECT is about all buffers that are const (fi_atomic(3)).
TEST(injected_operands_of_a_triggered_atomic_may_change_at_once, 4) {
  TriggerWorld world;
  const bool compares = _i % 2, by_alias = _i / 2;
  uint64_t operand = 5, expected = 0, fetched = 1, cell = 0;
  const fi_ioc ioc{&operand, 1}, compare{&expected, 1};
  fi_ioc result{&fetched, 1};
  const fi_rma_ioc target{world.at(128), 1, world.region.key()};
  fi_triggered_context context = world.condition(1);
  const fi_op op = compares ? FI_CSWAP : FI_SUM;
  const fi_msg_atomic msg{&ioc, nullptr, 1, world.to, &target, 1, FI_UINT64, op, &context, 0};
  fid_ep* ep = world.a.ep;
  if (by_alias)
    ck_assert_int_eq(fi_ep_alias(world.a.ep, &ep, FI_TRANSMIT | FI_TRIGGER | FI_INJECT), 0);
  const ssize_t rc =
      by_alias && compares
          ? fi_compare_atomic(ep, &operand, 1, nullptr, &expected, nullptr, &fetched, nullptr,
                              world.to, target.addr, target.key, FI_UINT64, op, &context)
      : by_alias ? fi_fetch_atomic(ep, &operand, 1, nullptr, &fetched, nullptr, world.to,
                                   target.addr, target.key, FI_UINT64, op, &context)
      : compares ? fi_compare_atomicmsg(ep, &msg, &compare, nullptr, 1, &result, nullptr, 1,
                                        FI_TRIGGER | FI_INJECT)
                 : fi_fetch_atomicmsg(ep, &msg, &result, nullptr, 1, FI_TRIGGER | FI_INJECT);
  ck_assert_int_eq(rc, 0);
  operand = expected = 99;
  world.add();
  ck_assert_ptr_eq(world.a.wait(&world.b).op_context, &context);
  std::memcpy(&cell, world.memory.data() + 128, 8);
  ck_assert_uint_eq(cell, 5);
  ck_assert_uint_eq(fetched, 0);
  if (by_alias) ck_assert_int_eq(fi_close(&ep->fid), 0);
}

TEST(works_are_posted_in_order_of_thresholds_then_of_age) {
  TriggerWorld world;
  constexpr uint64_t kThresholds[] = {3, 1, 2, 3, 1};
  constexpr int kOrder[] = {1, 4, 2, 0, 3};
  int values[5] = {0, 1, 2, 3, 4}, received[5];
  fi_triggered_context contexts[5];
  for (int i = 0; i < 5; ++i) {
    contexts[i] = world.condition(kThresholds[i]);
    const iovec iov{&values[i], sizeof(int)};
    const fi_msg msg{&iov, nullptr, 1, world.to, &contexts[i], 0};
    ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), 0);
  }
  world.add(3);
  for (int& value : received) {
    ck_assert_int_eq(fi_recv(world.b.ep, &value, sizeof(int), nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    world.b.wait(&world.a);
    world.a.wait(&world.b);
  }
  for (int i = 0; i < 5; ++i) ck_assert_int_eq(received[i], kOrder[i]);
}

TEST(a_condition_that_is_met_already_is_no_delay) {
  TriggerWorld world;
  world.add(5);
  char text[8] = "now    ";
  const iovec iov{text, 8};
  fi_triggered_context context = world.condition(5);
  const fi_msg msg{&iov, nullptr, 1, world.to, &context, 0};
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), 0);
  ck_assert_ptr_eq(world.a.wait(&world.b).op_context, &context);
}

TEST(a_failure_is_no_success_to_wait_for) {
  TriggerWorld world;
  char text[8] = "never  ";
  const iovec iov{text, 8};
  fi_triggered_context context = world.condition(1);
  const fi_msg msg{&iov, nullptr, 1, world.to, &context, 0};
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), 0);
  ck_assert_int_eq(fi_cntr_adderr(world.start, 1), 0);
  world.expect_silence();
  ck_assert_int_eq(fi_close(&world.start->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_cancel(&world.a.ep->fid, &context), 0);
  const fi_cq_err_entry error = world.a.wait_error();
  ck_assert_int_eq(error.err, FI_ECANCELED);
  ck_assert_ptr_eq(error.op_context, &context);
  ck_assert_uint_eq(error.flags, FI_SEND | FI_MSG);
  ck_assert_int_eq(fi_cancel(&world.a.ep->fid, &context), -FI_ENOENT);
  world.add();
  world.expect_silence();
}

/// FI_MULTI_RECV tells that the provider has released the buffer (fi_cq(3)).
TEST(a_multi_receive_buffer_that_is_never_posted_is_given_back) {
  TriggerWorld world;
  char buffer[100];
  const iovec iov{buffer, sizeof(buffer)};
  fi_triggered_context context = world.condition(1);
  const fi_msg msg{&iov, nullptr, 1, FI_ADDR_UNSPEC, &context, 0};
  ck_assert_int_eq(fi_recvmsg(world.b.ep, &msg, FI_TRIGGER | FI_MULTI_RECV), 0);
  ck_assert_int_eq(fi_cancel(&world.b.ep->fid, &context), 0);
  const fi_cq_err_entry error = world.b.wait_error();
  ck_assert_int_eq(error.err, FI_ECANCELED);
  ck_assert_uint_eq(error.flags, FI_RECV | FI_MSG | FI_MULTI_RECV);
}

TEST(what_can_not_be_posted_when_it_is_due_is_an_error_completion) {
  TriggerWorld world;
  char text[8] = {};
  const iovec iov{text, 8};
  fi_triggered_context context = world.condition(1);
  const fi_msg msg{&iov, nullptr, 1, 4711, &context, 0};
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), 0);
  world.add();
  const fi_cq_err_entry error = world.a.wait_error();
  ck_assert_int_eq(error.err, FI_EINVAL);
  ck_assert_ptr_eq(error.op_context, &context);
}

TEST(the_completions_of_an_endpoint_trigger) {
  TriggerWorld world;
  exchange(world.a, world.b, world.to, 8);  // they are connected
  fid_cntr* sent = open_cntr(world.root);
  ck_assert_int_eq(fi_ep_bind(world.a.ep, &sent->fid, FI_SEND), 0);
  char text[8] = "chained", received[2][8] = {};
  const iovec iov{text, 8};
  fi_triggered_context context = world.condition(1);
  context.trigger.threshold.cntr = sent;
  const fi_msg msg{&iov, nullptr, 1, world.to, &context, 0};
  for (auto& buffer : received)
    ck_assert_int_eq(fi_recv(world.b.ep, buffer, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), 0);
  world.expect_silence();
  // This call completes at once, and the endpoint makes no other one.
  ck_assert_int_eq(fi_send(world.a.ep, "first  ", 8, nullptr, world.to, nullptr), 0);
  world.b.wait();
  world.b.wait();
  ck_assert_str_eq(received[1], "chained");
  ck_assert_uint_eq(fi_cntr_read(sent), 2);
  ck_assert_int_eq(fi_close(&world.a.ep->fid), 0);
  world.a.ep = nullptr;
  ck_assert_int_eq(fi_close(&sent->fid), 0);
}

TEST(an_alias_has_flags_of_its_own) {
  TriggerWorld world;
  fid_ep* alias = nullptr;
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &alias, FI_TRANSMIT | FI_MULTI_RECV), -FI_EBADFLAGS);
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &alias, FI_TRIGGER), -FI_EINVAL);
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &alias, FI_TRANSMIT | FI_TRIGGER), 0);
  ck_assert_int_eq(fi_close(&world.a.ep->fid), -FI_EBUSY);
  char text[8] = "alias  ", received[8] = {};
  fi_triggered_context context = world.condition(1);
  ck_assert_int_eq(fi_recv(world.b.ep, received, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ck_assert_int_eq(fi_send(alias, text, 8, nullptr, world.to, &context), 0);
  world.expect_silence();
  ck_assert_int_eq(fi_inject(alias, text, 8, world.to), -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_tinject(alias, text, 8, world.to, 7), -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_inject_write(alias, text, 8, world.to, 0, 0), -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_inject_atomic(alias, text, 1, world.to, 0, 0, FI_UINT64, FI_SUM),
                   -FI_EOPNOTSUPP);
  world.add();
  ck_assert_ptr_eq(world.a.wait(&world.b).op_context, &context);
  world.b.wait(&world.a);
  ck_assert_str_eq(received, "alias  ");
  char name[64];
  size_t length = sizeof(name);
  ck_assert_int_eq(fi_getname(&alias->fid, name, &length), 0);
  ck_assert(std::equal(name, name + length, world.a.name().begin()));
  ck_assert_int_eq(fi_close(&alias->fid), 0);
}

TEST(an_alias_does_what_its_endpoint_does) {
  TriggerWorld world;
  fid_ep *from = nullptr, *into = nullptr;
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &from, FI_TRANSMIT), 0);
  ck_assert_int_eq(fi_ep_alias(world.b.ep, &into, FI_RECV), 0);
  char text[8] = "alias  ", received[8] = {};
  ck_assert_int_eq(fi_trecv(into, received, 8, nullptr, FI_ADDR_UNSPEC, 7, 0, nullptr), 0);
  ck_assert_int_eq(fi_tsenddata(from, text, 8, nullptr, 33, world.to, 7, nullptr), 0);
  ck_assert_uint_eq(world.a.wait(&world.b).flags, FI_SEND | FI_TAGGED);
  const fi_cq_tagged_entry entry = world.b.wait(&world.a);
  ck_assert_uint_eq(entry.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
  ck_assert_uint_eq(entry.data, 33);
  ck_assert_int_eq(fi_recv(into, received, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ck_assert_int_eq(fi_inject(from, text, 8, world.to), 0);
  world.b.wait(&world.a);
  ck_assert_int_eq(
      fi_write(from, text, 8, nullptr, world.to, world.at(0), world.region.key(), nullptr), 0);
  ck_assert_uint_eq(world.a.wait(&world.b).flags, FI_RMA | FI_WRITE);
  ck_assert_int_eq(
      fi_read(from, received, 8, nullptr, world.to, world.at(0), world.region.key(), nullptr), 0);
  ck_assert_uint_eq(world.a.wait(&world.b).flags, FI_RMA | FI_READ);
  ck_assert_str_eq(received, "alias  ");
  uint64_t one = 1, before = 7;
  ck_assert_int_eq(fi_fetch_atomic(from, &one, 1, nullptr, &before, nullptr, world.to, world.at(64),
                                   world.region.key(), FI_UINT64, FI_SUM, nullptr),
                   0);
  ck_assert_uint_eq(world.a.wait(&world.b).flags, FI_ATOMIC | FI_READ);
  ck_assert_uint_eq(before, 0);
  fi_context context;
  ck_assert_int_eq(fi_recv(into, received, 8, nullptr, FI_ADDR_UNSPEC, &context), 0);
  ck_assert_int_eq(fi_cancel(&into->fid, &context), 0);
  ck_assert_int_eq(world.b.wait_error().err, FI_ECANCELED);
  ck_assert_int_eq(fi_close(&from->fid), 0);
  ck_assert_int_eq(fi_close(&into->fid), 0);
}

TEST(an_alias_is_enabled_with_its_endpoint) {
  TriggerWorld world;
  fid_ep *ep = nullptr, *alias = nullptr, *second = nullptr;
  ck_assert_int_eq(fi_endpoint(world.root.domain, world.root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_alias(ep, &alias, FI_TRANSMIT), 0);
  ck_assert_int_eq(fi_ep_alias(ep, &second, FI_RECV), 0);
  char text[8] = "early  ", received[8] = {};
  ck_assert_int_eq(fi_send(alias, text, 8, nullptr, world.to, nullptr), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_close(&second->fid), 0);
  const uint64_t directions = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
  ck_assert_int_eq(fi_ep_bind(ep, &world.a.cq->fid, directions), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &world.a.av->fid, 0), 0);
  ck_assert_int_eq(fi_enable(ep), 0);
  ck_assert_int_eq(fi_recv(world.b.ep, received, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ck_assert_int_eq(fi_send(alias, text, 8, nullptr, world.to, nullptr), 0);
  world.b.wait(&world.a);
  ck_assert_str_eq(received, "early  ");
  world.expect_silence();
  ck_assert_int_eq(fi_close(&ep->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&alias->fid), 0);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
}

TEST(an_alias_reads_with_flags_that_are_of_sends) {
  TriggerWorld world;
  const uint64_t flags =
      FI_TRANSMIT | FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_MATCH_COMPLETE;
  fid_ep* alias = nullptr;
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &alias, flags), 0);
  std::memcpy(world.memory.data(), "remote ", 8);
  char bytes[8] = {};
  ck_assert_int_eq(
      fi_read(alias, bytes, 8, nullptr, world.to, world.at(0), world.region.key(), nullptr), 0);
  ck_assert_uint_eq(world.a.wait(&world.b).flags, FI_RMA | FI_READ);
  ck_assert_str_eq(bytes, "remote ");
  ck_assert_int_eq(fi_close(&alias->fid), 0);
}

TEST(what_makes_no_condition_is_refused) {
  TriggerWorld world;
  Root other(trigger_ask());
  fid_cntr* const foreign = open_cntr(other);
  char text[8];
  const iovec iov{text, 8};
  fi_triggered_context context = world.condition(1);
  fi_msg msg{&iov, nullptr, 1, world.to, &context, 0};
  context.trigger.threshold.cntr = foreign;
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), -FI_EINVAL);
  context.trigger.threshold.cntr = reinterpret_cast<fid_cntr*>(world.a.ep);
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), -FI_EINVAL);
  context.trigger.threshold.cntr = nullptr;
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), -FI_EINVAL);
  context.event_type = FI_TRIGGER_XPU;
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), -FI_ENOSYS);
  msg.context = nullptr;
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER), -FI_EINVAL);
  context = world.condition(1);
  msg.context = &context;
  const std::vector<char> large(5000);
  const iovec long_iov{const_cast<char*>(large.data()), large.size()};
  msg.msg_iov = &long_iov;
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER | FI_INJECT), -FI_EMSGSIZE);
  // The longest message that may be injected.
  std::vector<char> received(4096);
  const iovec longest{const_cast<char*>(large.data()), received.size()};
  msg.msg_iov = &longest;
  ck_assert_int_eq(
      fi_recv(world.b.ep, received.data(), received.size(), nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &msg, FI_TRIGGER | FI_INJECT), 0);
  world.add();
  ck_assert_uint_eq(world.b.wait(&world.a).len, received.size());
  ck_assert_int_eq(fi_close(&foreign->fid), 0);
}

}  // namespace
