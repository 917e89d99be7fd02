// Data transfer calls refuse wrong arguments with the right error, transfer nothing, and have no
// effect on later calls. Over shared memory.
#include <climits>
#include <cstdint>
#include <cstring>

#include "fabric/trigger_rig.h"

namespace {

using namespace erdma::test;

TEST_CASE(.set_up = on_shm);

// --- atomics -------------------------------------------------------------------------------------

enum Form { update, fetch, compare };

/// The arguments of fi_atomicmsg and its relatives. They are valid until a test changes one.
struct Atomic {
  explicit Atomic(const TriggerWorld& world) {
    for (fi_rma_ioc& part : remote) part = {world.at(0), 0, world.region.key()};
    operand[0] = {words, 1}, comparison[0] = {words, 1}, result[0] = {fetched, 1};
    remote[0].count = 1;
    message.addr = world.to;
    message.msg_iov = operand;
    message.rma_iov = remote;
    message.iov_count = message.rma_iov_count = 1;
    message.datatype = FI_UINT64;
  }
  ssize_t post(fid_ep* ep, Form form) {
    if (message.op == FI_MIN) message.op = form == compare ? FI_CSWAP : FI_SUM;
    if (form == update) return fi_atomicmsg(ep, &message, flags);
    if (form == fetch)
      return fi_fetch_atomicmsg(ep, &message, result, nullptr, result_count, flags);
    return fi_compare_atomicmsg(ep, &message, comparison, nullptr, comparison_count, result,
                                nullptr, result_count, flags);
  }

  uint64_t words[1024] = {5}, fetched[1024] = {};
  fi_ioc operand[5]{}, comparison[5]{}, result[5]{};
  fi_rma_ioc remote[5]{};
  size_t comparison_count = 1, result_count = 1;
  fi_msg_atomic message{};
  uint64_t flags = 0;
};

const struct {
  Form form;
  int expected;
  void (*spoil)(Atomic&);
} kAtomics[] = {
    {update, -FI_EOPNOTSUPP, [](Atomic& a) { a.message.op = FI_ATOMIC_READ; }},
    {update, -FI_EOPNOTSUPP, [](Atomic& a) { a.message.op = FI_CSWAP; }},
    {fetch, -FI_EOPNOTSUPP, [](Atomic& a) { a.message.op = FI_CSWAP; }},
    {compare, -FI_EOPNOTSUPP, [](Atomic& a) { a.message.op = FI_SUM; }},
    {update, -FI_EOPNOTSUPP, [](Atomic& a) { a.message.op = fi_op(FI_MSWAP + 1); }},
    {update, -FI_EOPNOTSUPP, [](Atomic& a) { a.message.datatype = fi_datatype(FI_UINT128 + 1); }},
    {update, -FI_EINVAL, [](Atomic& a) { a.message.iov_count = 0; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.message.iov_count = 5; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.message.msg_iov = nullptr; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.operand[0].addr = nullptr; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.operand[0].count = 2; }},
    {update, -FI_EMSGSIZE, [](Atomic& a) { a.operand[0].count = a.remote[0].count = 513; }},
    {update, -FI_EMSGSIZE, [](Atomic& a) { a.operand[0].count = SIZE_MAX / 8 + 2; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.message.rma_iov = nullptr; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.message.rma_iov_count = 0; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.message.rma_iov_count = 5; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.remote[0].count = 0; }},
    {update, -FI_EINVAL, [](Atomic& a) { a.remote[0].count = 2; }},
    // The sum of the counts equals that of the operand only because of an overflow.
    {update, -FI_EINVAL,
     [](Atomic& a) {
       a.message.rma_iov_count = 2;
       a.remote[0].count = SIZE_MAX;
       a.remote[1].count = 2;
     }},
    {update, -FI_EBADFLAGS, [](Atomic& a) { a.flags = FI_REMOTE_CQ_DATA; }},
    {fetch, -FI_EINVAL, [](Atomic& a) { a.result_count = 0; }},
    {fetch, -FI_EINVAL, [](Atomic& a) { a.result_count = 5; }},
    {fetch, -FI_EINVAL, [](Atomic& a) { a.result[0].count = 2; }},
    {fetch, -FI_EINVAL, [](Atomic& a) { a.result[0].addr = nullptr; }},
    {fetch, -FI_EINVAL,
     [](Atomic& a) {
       a.message.op = FI_ATOMIC_READ;
       a.result[0].count = 0;
     }},
    {compare, -FI_EINVAL, [](Atomic& a) { a.comparison_count = 0; }},
    {compare, -FI_EINVAL, [](Atomic& a) { a.comparison_count = 5; }},
    {compare, -FI_EINVAL, [](Atomic& a) { a.comparison[0].count = 2; }},
    {compare, -FI_EINVAL, [](Atomic& a) { a.comparison[0].addr = nullptr; }},
    {compare, -FI_EINVAL, [](Atomic& a) { a.result[0].count = 2; }},
};

/// Uses an endpoint, and an alias, which has another table of entry points.
TEST(an_atomic_that_is_none_is_refused_and_changes_nothing, 2) {
  TriggerWorld world;
  fid_ep* alias = nullptr;
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &alias, FI_TRANSMIT), 0);
  fid_ep* const ep = _i ? alias : world.a.ep;
  auto* const there = reinterpret_cast<uint64_t*>(world.memory.data());
  for (const auto& refused : kAtomics) {
    Atomic atomic(world);
    refused.spoil(atomic);
    ck_assert_msg(atomic.post(ep, refused.form) == refused.expected, "row %zu",
                  size_t(&refused - kAtomics));
  }
  ck_assert_int_eq(fi_atomicmsg(ep, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_fetch_atomicmsg(ep, nullptr, nullptr, nullptr, 0, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_compare_atomicmsg(ep, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0, 0),
                   -FI_EINVAL);
  world.expect_silence();
  ck_assert_uint_eq(there[0], 0);
  const uint64_t after[] = {5, 10, 10}, before[] = {0, 5, 10};  // 0 + 5; 5 + 5; 10 is not 5
  for (const Form form : {update, fetch, compare}) {
    Atomic right(world);
    ck_assert_int_eq(right.post(ep, form), 0);
    world.a.wait(&world.b);
    ck_assert_uint_eq(there[0], after[form]);
    ck_assert_uint_eq(right.fetched[0], before[form]);
  }
  ck_assert_int_eq(fi_close(&alias->fid), 0);
}

TEST(an_atomic_has_as_many_parts_and_elements_as_promised, 2) {
  TriggerWorld world;
  fid_ep* const ep = world.a.ep;
  auto* const there = reinterpret_cast<uint8_t*>(world.memory.data());
  const size_t most = 4096;
  size_t count = 0;
  ck_assert_int_eq(fi_atomicvalid(ep, FI_UINT8, FI_SUM, &count), 0);
  ck_assert_uint_eq(count, most);
  ck_assert_int_eq(fi_atomicvalid(ep, FI_UINT8, FI_SUM, nullptr), -FI_EINVAL);
  Atomic atomic(world);
  atomic.message.datatype = FI_UINT8;
  const size_t parts = _i ? 4 : 1;
  for (size_t i = 0; i < parts; ++i) {
    const size_t at = most / parts * i;
    atomic.operand[i] =
        atomic.comparison[i] = {reinterpret_cast<uint8_t*>(atomic.words) + at, most / parts};
    atomic.result[i] = {reinterpret_cast<uint8_t*>(atomic.fetched) + at, most / parts};
    atomic.remote[i] = {world.at(at), most / parts, world.region.key()};
  }
  atomic.message.iov_count = atomic.message.rma_iov_count = parts;
  atomic.comparison_count = atomic.result_count = parts;
  std::memset(atomic.words, 3, most);
  for (const Form form : {update, fetch, compare}) {
    atomic.message.op = form == compare ? FI_CSWAP_NE : FI_SUM;
    ck_assert_int_eq(atomic.post(ep, form), 0);
    world.a.wait(&world.b);
  }
  const auto* const fetched = reinterpret_cast<const uint8_t*>(atomic.fetched);
  for (size_t i = 0; i < most; ++i) {
    ck_assert_uint_eq(there[i], 3);
    ck_assert_uint_eq(fetched[i], 6);
  }
  // One more element is refused.
  ++atomic.operand[0].count, ++atomic.remote[0].count;
  atomic.message.op = FI_SUM;
  ck_assert_int_eq(atomic.post(ep, update), -FI_EMSGSIZE);
  ck_assert_int_eq(fi_inject_atomic(ep, atomic.words, most + 1, world.to, world.at(0),
                                    world.region.key(), FI_UINT8, FI_SUM),
                   -FI_EMSGSIZE);
  world.expect_silence();
  ck_assert_uint_eq(there[most], 0);
}

// --- RMA and messages ----------------------------------------------------------------------------

struct Transfer {
  explicit Transfer(const TriggerWorld& world) {
    for (fi_rma_iov& part : remote) part = {world.at(0), 0, world.region.key()};
    for (iovec& part : local) part = {bytes, 0};
    local[0].iov_len = remote[0].len = 8;
    message.addr = world.to;
    message.msg_iov = local;
    message.rma_iov = remote;
    message.iov_count = message.rma_iov_count = 1;
  }
  char bytes[16] = "written";
  iovec local[5];
  fi_rma_iov remote[5];
  fi_msg_rma message{};
  uint64_t flags = 0;
};

const struct {
  int expected;
  void (*spoil)(Transfer&);
} kTransfers[] = {
    {-FI_EINVAL, [](Transfer& t) { t.message.iov_count = 5; }},
    {-FI_EINVAL, [](Transfer& t) { t.message.msg_iov = nullptr; }},
    {-FI_EINVAL, [](Transfer& t) { t.local[0].iov_base = nullptr; }},
    {-FI_EINVAL, [](Transfer& t) { t.message.rma_iov_count = 5; }},
    {-FI_EINVAL, [](Transfer& t) { t.message.rma_iov = nullptr; }},
    {-FI_EINVAL, [](Transfer& t) { t.message.rma_iov_count = 0; }},
    {-FI_EINVAL, [](Transfer& t) { t.remote[0].len = 7; }},
    {-FI_EINVAL, [](Transfer& t) { t.remote[0].len = 9; }},
    // The sum equals the length of the local memory only because of an overflow.
    {-FI_EINVAL,
     [](Transfer& t) {
       t.message.rma_iov_count = 2;
       t.remote[0].len = SIZE_MAX;
       t.remote[1].len = 9;
     }},
    {-FI_EMSGSIZE,
     [](Transfer& t) { t.local[0].iov_len = t.remote[0].len = size_t{SSIZE_MAX} + 1; }},
    {-FI_EBADFLAGS, [](Transfer& t) { t.flags = FI_PEEK; }},
};

TEST(a_transfer_that_is_none_is_refused_and_moves_nothing, 2) {
  TriggerWorld world;
  fid_ep* alias = nullptr;
  ck_assert_int_eq(fi_ep_alias(world.a.ep, &alias, FI_TRANSMIT), 0);
  fid_ep* const ep = _i ? alias : world.a.ep;
  for (const auto& refused : kTransfers) {
    Transfer transfer(world);
    refused.spoil(transfer);
    const size_t row = size_t(&refused - kTransfers);
    ck_assert_msg(fi_writemsg(ep, &transfer.message, transfer.flags) == refused.expected,
                  "write, row %zu", row);
    ck_assert_msg(fi_readmsg(ep, &transfer.message, transfer.flags) == refused.expected,
                  "read, row %zu", row);
    ck_assert_str_eq(transfer.bytes, "written");
  }
  Transfer right(world);
  const uint64_t key = world.region.key();
  ck_assert_int_eq(fi_readmsg(ep, &right.message, FI_REMOTE_CQ_DATA), -FI_EBADFLAGS);
  for (const auto& msg : {fi_writemsg(ep, nullptr, 0), fi_readmsg(ep, nullptr, 0)})
    ck_assert_int_eq(msg, -FI_EINVAL);
  ck_assert_int_eq(fi_inject_write(ep, nullptr, 1, world.to, world.at(0), key), -FI_EINVAL);
  ck_assert_int_eq(fi_write(ep, nullptr, 1, nullptr, world.to, world.at(0), key, nullptr),
                   -FI_EINVAL);
  ck_assert_int_eq(fi_writev(ep, right.local, nullptr, 5, world.to, world.at(0), key, nullptr),
                   -FI_EINVAL);
  world.expect_silence();
  ck_assert_int_eq(world.memory[0], 0);
  ck_assert_int_eq(fi_writemsg(ep, &right.message, 0), 0);
  world.a.wait(&world.b);
  ck_assert_str_eq(world.memory.data(), "written");
  ck_assert_int_eq(fi_close(&alias->fid), 0);
}

TEST(memory_of_no_bytes_is_anywhere) {
  Root root;
  Port port(root);
  const fi_addr_t self = port.insert(port);
  const iovec nothing{nullptr, 0};
  const fi_msg empty{nullptr, nullptr, 0, self, nullptr, 0};
  const auto arrives = [&](ssize_t received, ssize_t sent) {
    ck_assert_int_eq(received, 0);
    ck_assert_int_eq(sent, 0);
    for (int i = 0; i < 2; ++i) ck_assert_uint_eq(port.wait().len, 0);
  };
  arrives(fi_recv(port.ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, nullptr),
          fi_send(port.ep, nullptr, 0, nullptr, self, nullptr));
  arrives(fi_recvv(port.ep, &nothing, nullptr, 1, FI_ADDR_UNSPEC, nullptr),
          fi_sendv(port.ep, &nothing, nullptr, 1, self, nullptr));
  arrives(fi_recvmsg(port.ep, &empty, 0), fi_sendmsg(port.ep, &empty, 0));
}

}  // namespace
