// Calls that open, bind and set refuse wrong arguments with the right error, and have no effect on
// later calls. Over shared memory.
#include <netinet/in.h>

#include <climits>
#include <cstdint>
#include <cstring>

#include "fabric/fid_ops.h"
#include "fabric/trigger_rig.h"

// For fi_tx_size_left and fi_rx_size_left.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;

constexpr uint64_t kRegMr = 1ull << 59;  ///< FI_REG_MR, of whose name the headers of 2.x warn

TEST_CASE(.set_up = on_shm);

// --- options, flags, names and bindings ----------------------------------------------------------

constexpr int kSharedMemoryPermitted = 11, kMaxMsgSize = 12, kMaxTaggedSize = 13,
              kInjectMsgSize = 16, kInjectTaggedSize = 17;

TEST(an_option_takes_its_own_size_and_no_more_than_there_is) {
  Root root;
  Port port(root);
  fid_t const fid = &port.ep->fid;
  uint64_t value[2] = {};
  size_t length = sizeof(value[0]);
  const auto set = [&](int option, size_t bytes) {
    return fi_setopt(fid, FI_OPT_ENDPOINT, option, value, bytes);
  };
  for (const int option : {kMaxMsgSize, kMaxTaggedSize, kInjectMsgSize, kInjectTaggedSize}) {
    const uint64_t most =
        option == kMaxMsgSize || option == kMaxTaggedSize ? uint64_t{SSIZE_MAX} : 4096;
    length = sizeof(value);
    ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, option, value, &length), 0);
    ck_assert_uint_eq(length, 8);
    ck_assert_uint_eq(value[0], most);
    ck_assert_int_eq(set(option, 8), 0);
    for (const size_t bytes : {0u, 7u, 9u}) ck_assert_int_eq(set(option, bytes), -FI_EINVAL);
    value[0] = most + 1;
    ck_assert_int_eq(set(option, 8), -FI_EINVAL);
    length = 7;
    ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, option, value, &length), -FI_ETOOSMALL);
    ck_assert_uint_eq(length, 8);
    ck_assert_uint_eq(value[0], most + 1);
    length = 8;
    ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, option, value, &length), 0);
    ck_assert_uint_eq(value[0], most);
    value[0] = 100 + uint64_t(option);
    ck_assert_int_eq(set(option, 8), 0);
  }
  // Each is kept by itself.
  for (const int option : {kMaxMsgSize, kMaxTaggedSize, kInjectMsgSize, kInjectTaggedSize}) {
    ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, option, value, &length), 0);
    ck_assert_uint_eq(value[0], 100 + uint64_t(option));
  }
  for (const int option : {kCudaApiPermitted, kSharedMemoryPermitted})
    for (const size_t bytes : {0u, 2u}) ck_assert_int_eq(set(option, bytes), -FI_EINVAL);
  ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, kMaxMsgSize, nullptr, &length), -FI_EINVAL);
  ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, kMaxMsgSize, value, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT + 1, kMaxMsgSize, value, &length),
                   -FI_ENOPROTOOPT);
}

TEST(options_of_a_shared_context_are_fewer) {
  Root root;
  fid_ep* srx = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, nullptr, &srx, nullptr), 0);
  ck_assert_int_eq(fi_srx_context(root.domain, nullptr, nullptr, nullptr), -FI_EINVAL);
  fid_t const fid = &srx->fid;
  size_t value = 100, length = sizeof(value);
  for (const int option : {kMaxMsgSize, kCudaApiPermitted}) {
    ck_assert_int_eq(fi_setopt(fid, FI_OPT_ENDPOINT, option, &value, 8), -FI_ENOPROTOOPT);
    ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, option, &value, &length), -FI_ENOPROTOOPT);
  }
  ck_assert_int_eq(fi_setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, 7), -FI_EINVAL);
  ck_assert_int_eq(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &length), 0);
  ck_assert_uint_ne(value, 100);
  ck_assert_int_eq(fi_control(fid, FI_GETOPSFLAG, &value), -FI_ENOSYS);
  ck_assert_int_eq(fi_close(fid), 0);
}

TEST(flags_of_operations_name_one_direction) {
  Root root(trigger_ask());
  Port port(root);
  fid_t const fid = &port.ep->fid;
  for (const int command : {FI_GETOPSFLAG, FI_SETOPSFLAG}) {
    ck_assert_int_eq(fi_control(fid, command, nullptr), -FI_EINVAL);
    for (const uint64_t wrong :
         {uint64_t{0}, uint64_t{FI_COMPLETION}, uint64_t{FI_TRANSMIT | FI_RECV}}) {
      uint64_t flags = wrong;
      ck_assert_int_eq(fi_control(fid, command, &flags), -FI_EINVAL);
      ck_assert_uint_eq(flags, wrong);
    }
  }
}

TEST(an_alias_that_cannot_be_is_refused, 2) {
  Root root(_i ? trigger_ask() : one_sided_ask());
  Port port(root);
  fid_ep* alias = nullptr;
  const uint64_t trigger = _i ? 0 : FI_TRIGGER;
  const struct {
    uint64_t flags;
    int expected;
  } rows[] = {
      {FI_COMPLETION, -FI_EINVAL},
      {FI_TRANSMIT | FI_MULTI_RECV, -FI_EBADFLAGS},
      {FI_RECV | FI_INJECT, -FI_EBADFLAGS},
      {FI_TRANSMIT | FI_RECV | FI_INJECT, -FI_EBADFLAGS},
      {FI_TRANSMIT | FI_RECV | FI_MULTI_RECV, -FI_EBADFLAGS},
      {FI_TRANSMIT | trigger, trigger ? -FI_EBADFLAGS : 0},
      {FI_RECV | trigger, trigger ? -FI_EBADFLAGS : 0},
      {0, 0},
  };
  for (const auto& row : rows) {
    ck_assert_int_eq(fi_ep_alias(port.ep, &alias, row.flags), row.expected);
    if (row.expected == 0) ck_assert_int_eq(fi_close(&alias->fid), 0);
  }
  struct fi_alias nowhere {
    nullptr, FI_TRANSMIT
  };
  ck_assert_int_eq(fi_control(&port.ep->fid, FI_ALIAS, &nowhere), -FI_EINVAL);
  ck_assert_int_eq(fi_control(&port.ep->fid, FI_ALIAS, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_ep_alias(port.ep, &alias, FI_TRANSMIT), 0);
  ck_assert_int_eq(fi_close(&port.ep->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&alias->fid), 0);
}

TEST(an_alias_that_waits_for_a_counter_injects_nothing) {
  TriggerWorld world;
  fid_ep* alias = nullptr;
  const uint64_t key = world.region.key(), value = 1;
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &alias, FI_TRANSMIT | FI_TRIGGER), 0);
  ck_assert_int_eq(fi_inject(alias, &value, 8, world.to), -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_tinject(alias, &value, 8, world.to, 1), -FI_EOPNOTSUPP);
  ck_assert_int_eq(fi_inject_write(alias, &value, 8, world.to, world.at(0), key), -FI_EOPNOTSUPP);
  ck_assert_int_eq(
      fi_inject_atomic(alias, &value, 1, world.to, world.at(0), key, FI_UINT64, FI_SUM),
      -FI_EOPNOTSUPP);
  world.expect_silence();
  ck_assert_int_eq(world.memory[0], 0);
  ck_assert_int_eq(fi_close(&alias->fid), 0);
}

TEST(what_is_not_for_an_endpoint_is_not_bound) {
  Root root;
  fid_ep* ep = nullptr;
  fid_eq* eq = nullptr;
  fid_av* av = root.open_av();
  fid_cq* cq = root.open_cq();
  fi_eq_attr attr{};
  ck_assert_int_eq(fi_eq_open(root.fabric, &attr, &eq, nullptr), 0);
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  fid transmit_context{};
  transmit_context.fclass = FI_CLASS_STX_CTX;
  fid_ep* srx = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, nullptr, &srx, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &transmit_context, 0), -FI_ENOSYS);
  ck_assert_int_eq(fi_ep_bind(ep, &root.domain->fid, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_ep_bind(ep, &srx->fid, FI_RECV), -FI_EBADFLAGS);
  for (const int expected : {0, -FI_EINVAL}) {
    ck_assert_int_eq(fi_ep_bind(ep, &eq->fid, 0), expected);
    ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), expected);
    ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT), expected);
  }
  ck_assert_int_eq(fi_close(&eq->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_enable(ep), -FI_ENOCQ);  // there is no queue for receives
  ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_RECV), 0);
  ck_assert_int_eq(fi_enable(ep), 0);
  ck_assert_int_eq(fi_enable(ep), 0);
  for (fid_t object : {&ep->fid, &eq->fid, &av->fid, &cq->fid, &srx->fid})
    ck_assert_int_eq(fi_close(object), 0);
}

TEST(a_name_is_taken_only_before_it_is_used) {
  Root root;
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  sockaddr_in name{}, foreign{};
  size_t length = sizeof(name);
  std::memcpy(&name, root.info->src_addr, sizeof(name));
  foreign = name;
  foreign.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1 is never assigned
  ck_assert_int_eq(fi_getname(&ep->fid, &name, &length), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_tx_size_left(ep), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_rx_size_left(ep), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_setname(&ep->fid, nullptr, sizeof(name)), -FI_EINVAL);
  ck_assert_int_eq(fi_setname(&ep->fid, &name, 3), -FI_EINVAL);
  ck_assert_int_eq(fi_setname(&ep->fid, &foreign, sizeof(foreign)), -FI_EADDRNOTAVAIL);
  ck_assert_int_eq(fi_setname(&ep->fid, &name, sizeof(name)), 0);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
  Port port(root);
  ck_assert_int_eq(fi_setname(&port.ep->fid, &name, sizeof(name)), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_getname(&port.ep->fid, nullptr, &length), -FI_ETOOSMALL);
  ck_assert_uint_eq(length, sizeof(name));
  length = sizeof(name) - 1;
  ck_assert_int_eq(fi_getname(&port.ep->fid, &name, &length), -FI_ETOOSMALL);
  ck_assert_int_eq(fi_getname(&port.ep->fid, &name, &length), 0);
  ck_assert_int_gt(fi_tx_size_left(port.ep), 0);
  ck_assert_int_gt(fi_rx_size_left(port.ep), 0);
}

/// fi_cm(3): an address may be assigned by the info or by fi_setname, and has a name from then on.
TEST(an_assigned_name_is_known_before_fi_enable) {
  Root root;
  fid_ep* ep = nullptr;
  sockaddr_in wanted{}, name{};
  std::memcpy(&wanted, root.info->src_addr, sizeof(wanted));
  wanted.sin_port = htons(47123);
  size_t length = sizeof(name);
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_setname(&ep->fid, &wanted, sizeof(wanted)), 0);
  ck_assert_int_eq(fi_getname(&ep->fid, &name, &length), 0);
  ck_assert_uint_eq(length, sizeof(wanted));
  ck_assert_mem_eq(&name, &wanted, sizeof(wanted));
  length = 3;
  ck_assert_int_eq(fi_getname(&ep->fid, &name, &length), -FI_ETOOSMALL);
  ck_assert_uint_eq(length, sizeof(wanted));
  // Without a port no address is assigned.
  wanted.sin_port = 0;
  ck_assert_int_eq(fi_setname(&ep->fid, &wanted, sizeof(wanted)), 0);
  ck_assert_int_eq(fi_getname(&ep->fid, &name, &length), -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
}

/// Each lower bound must hold: while it is not 0, the next send finds room.
TEST(the_room_for_sends_is_what_those_in_flight_leave) {
  setenv("FI_ERDMA_TX_SIZE", "16", 1);
  Root root;
  Port from(root), to(root);
  const fi_addr_t address = from.insert(to);
  const std::vector<char> bytes(1 << 20);
  std::vector<char> received(bytes.size());
  for (ssize_t left = 16; left > 0; --left) {
    ck_assert_int_eq(fi_tx_size_left(from.ep), left);
    ck_assert_int_eq(fi_send(from.ep, bytes.data(), bytes.size(), nullptr, address, nullptr), 0);
  }
  ck_assert_int_eq(fi_send(from.ep, bytes.data(), bytes.size(), nullptr, address, nullptr),
                   -FI_EAGAIN);
  ck_assert_int_eq(fi_tx_size_left(from.ep), 0);
  ck_assert_int_eq(
      fi_recv(to.ep, received.data(), received.size(), nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  from.wait(&to);
  ck_assert_int_eq(fi_tx_size_left(from.ep), 1);
}

// --- domains and works ---------------------------------------------------------------------------

/// With FI_AV_USER_ID the source of each message is unknown until fi_av_set_user_id(3), which
/// libfabric has since 1.20.
TEST(an_av_of_user_ids_is_refused_where_the_call_to_set_them_is_missing) {
  constexpr bool kCanSet = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION) >= FI_VERSION(1, 20);
  Root root;
  fi_av_attr attr{};
  attr.flags = FI_AV_USER_ID;
  fid_av* av = nullptr;
  ck_assert_int_eq(fi_av_open(root.domain, &attr, &av, nullptr), kCanSet ? 0 : -FI_EINVAL);
  if (av) ck_assert_int_eq(fi_close(&av->fid), 0);
}

TEST(a_domain_refuses_what_it_cannot_make) {
  Root root(trigger_ask());
  fi_eq_attr eq_attr{};
  fid_eq* eq = nullptr;
  fid_domain* domain = nullptr;
  fid_ep* ep = nullptr;
  fid_av* av = nullptr;
  fid_t const fid = &root.domain->fid;
  ck_assert_int_eq(fi_domain(root.fabric, nullptr, &domain, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_domain(root.fabric, root.info, nullptr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_domain2(root.fabric, root.info, &domain, FI_PEER, nullptr), -FI_EINVAL);
  ck_assert_ptr_null(domain);
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, nullptr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_endpoint2(root.domain, root.info, &ep, FI_PEER, nullptr), -FI_EINVAL);
  ck_assert_ptr_null(ep);
  fi_av_attr attr{};
  ck_assert_int_eq(fi_av_open(root.domain, nullptr, &av, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_open(root.domain, &attr, nullptr, nullptr), -FI_EINVAL);
  attr.type = fi_av_type(FI_AV_TABLE + 1);
  ck_assert_int_eq(fi_av_open(root.domain, &attr, &av, nullptr), -FI_EINVAL);
  attr = {};
  attr.flags = FI_READ;
  ck_assert_int_eq(fi_av_open(root.domain, &attr, &av, nullptr), -FI_EINVAL);
  ck_assert_ptr_null(av);
  ck_assert_int_eq(fi_eq_open(root.fabric, &eq_attr, nullptr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_cq_open(root.domain, nullptr, nullptr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_cntr_open(root.domain, nullptr, nullptr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_open(root.fabric, &eq_attr, &eq, nullptr), 0);
  ck_assert_int_eq(fi_domain_bind(root.domain, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_domain_bind(root.domain, fid, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_domain_bind(root.domain, &eq->fid, kRegMr), -FI_EINVAL);
  ck_assert_int_eq(fi_domain_bind(root.domain, &eq->fid, 0), 0);
  ck_assert_int_eq(fi_close(&root.fabric->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(a_fabric_of_another_name_is_no_data) {
  fi_fabric_attr attr{};
  fid_fabric* fabric = nullptr;
  ck_assert_int_eq(provider()->fabric(nullptr, &fabric, nullptr), -FI_EINVAL);
  ck_assert_int_eq(provider()->fabric(&attr, nullptr, nullptr), -FI_EINVAL);
  char another[] = "another";
  attr.name = another;
  ck_assert_int_eq(provider()->fabric(&attr, &fabric, nullptr), -FI_ENODATA);
  ck_assert_ptr_null(fabric);
  attr.name = nullptr;
  ck_assert_int_eq(provider()->fabric(&attr, &fabric, nullptr), 0);
  ck_assert_int_eq(fi_close(&fabric->fid), 0);
}

/// bad_alloc becomes -FI_ENOMEM, any other exception -FI_EOTHER.
TEST(no_exception_leaves_a_call) {
  using erdma::fabric::abi_call;
  ck_assert_int_eq(abi_call([]() -> int { throw std::bad_alloc(); }), -FI_ENOMEM);
  ck_assert_int_eq(abi_call([]() -> int { throw 1; }), -FI_EOTHER);
  ck_assert_int_eq(abi_call([] { return -FI_EIO; }), -FI_EIO);
}

TEST(a_work_that_could_not_count_is_refused) {
  TriggerWorld world;
  Root other(trigger_ask());
  fid_cntr* const foreign = open_cntr(other);
  fid_t const domain = &world.root.domain->fid;
  fi_op_cntr target{world.done, 3};
  fi_deferred_work work = world.work(FI_OP_CNTR_ADD, 1);
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);  // the work has no counter
  work.op.cntr = &target;
  work.completion_cntr = world.done;
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);  // such a work has no completion to count
  work.completion_cntr = nullptr;
  target.cntr = foreign;
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);
  target.cntr = nullptr;
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);
  target.cntr = world.done;
  work.triggering_cntr = foreign;
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);
  char byte = 0;
  const iovec iov{&byte, 1};
  fi_context context;
  fi_op_msg msg{world.a.ep, {&iov, nullptr, 1, world.to, &context, 0}, 0};
  fi_deferred_work send = world.work(FI_OP_SEND, 1);
  send.op.msg = &msg;
  send.completion_cntr = foreign;
  ck_assert_int_eq(world.queue(send), -FI_EINVAL);
  msg.ep = nullptr;
  send.completion_cntr = nullptr;
  ck_assert_int_eq(world.queue(send), -FI_EINVAL);
  fi_op_tagged peek{world.a.ep, {&iov, nullptr, 1, FI_ADDR_UNSPEC, 7, 0, &context, 0}, FI_PEEK};
  fi_deferred_work probe = world.work(FI_OP_TRECV, 1);
  probe.op.tagged = &peek;
  ck_assert_int_eq(world.queue(probe), -FI_EBADFLAGS);
  ck_assert_int_eq(fi_control(domain, FI_FLUSH_WORK, foreign), -FI_EINVAL);
  ck_assert_int_eq(fi_control(domain, FI_CANCEL_WORK, &work), -FI_ENOENT);
  world.add();
  world.expect_silence();
  ck_assert_uint_eq(fi_cntr_read(world.done), 0);
  work = world.work(FI_OP_CNTR_ADD, 1);
  work.op.cntr = &target;
  ck_assert_int_eq(world.queue(work), 0);
  world.await(3);
  ck_assert_int_eq(fi_close(&foreign->fid), 0);
}

TEST(an_event_is_as_long_as_it_may_be_and_is_read_by_a_buffer_of_its_length) {
  Root root;
  fid_eq* eq = nullptr;
  fi_eq_attr attr{};
  attr.flags = FI_WRITE;
  attr.size = 2;
  ck_assert_int_eq(fi_eq_open(root.fabric, &attr, &eq, nullptr), 0);
  const std::vector<char> event = pattern(65537);
  std::vector<char> read(event.size());
  uint32_t type = 0;
  ck_assert_int_eq(fi_eq_write(eq, 7, event.data(), 65537, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_write(eq, 7, event.data(), 65536, 0), 65536);
  ck_assert_int_eq(fi_eq_write(eq, 8, event.data(), 1, 0), 1);
  ck_assert_int_eq(fi_eq_write(eq, 9, event.data(), 1, 0), -FI_EAGAIN);
  ck_assert_int_eq(fi_eq_read(eq, &type, read.data(), 65535, 0), -FI_ETOOSMALL);
  ck_assert_int_eq(fi_eq_read(eq, &type, read.data(), 65536, 0), 65536);
  ck_assert_uint_eq(type, 7);
  ck_assert(std::equal(read.begin(), read.end() - 1, event.begin()));
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

}  // namespace
