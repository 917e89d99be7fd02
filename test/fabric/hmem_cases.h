#pragma once

#include <memory>
#include <vector>

#include "fabric/rig.h"
#include "softcuda/device_memory.h"

/// Messages from and to memory of the simulated GPU, on whatever path the setup chooses.
namespace erdma::test {

/// True: the NIC reads and writes GPU memory itself, for messages longer than a packet.
inline bool g_direct = false;

inline Ask hmem_ask() {
  Ask ask;
  ask.caps = FI_HMEM | FI_MSG | FI_TAGGED;
  ask.mr_mode = FI_MR_HMEM;
  ask.version = FI_VERSION(1, 15);
  return ask;
}

/// The domain with which device memory must be registered for endpoints that may not call CUDA;
/// null: they ask CUDA.
inline fid_domain* g_registrar = nullptr;

struct Registered {
  explicit Registered(Root& root) { g_registrar = g_cuda_permitted ? nullptr : root.domain; }
  ~Registered() { g_registrar = nullptr; }
};

/// Checks that an endpoint that may not call CUDA makes no call while this object lives.
struct WithoutCuda {
  ~WithoutCuda() {
    if (!g_cuda_permitted) ck_assert_uint_eq(softcuda_calls(nullptr), before);
  }
  const unsigned long before = softcuda_calls(nullptr);
};

/// Bytes in host memory or device memory.
class Memory {
 public:
  Memory(bool device, const std::vector<char>& bytes)
      : x_host(device ? std::vector<char>() : bytes),
        x_device(device ? new DeviceMemory(bytes) : nullptr) {
    static uint64_t key = 0;
    fid_mr* mr = nullptr;
    if (!device || !g_registrar || bytes.empty()) return;
    ck_assert_int_eq(
        fi_mr_reg(g_registrar, at(), bytes.size(), FI_SEND | FI_RECV, 0, ++key, 0, &mr, nullptr),
        0);
    x_region.reset(mr);
  }
  char* at(size_t offset = 0) {
    return x_device ? static_cast<char*>(x_device->at(offset)) : x_host.data() + offset;
  }
  std::vector<char> bytes() const { return x_device ? x_device->bytes() : x_host; }

 private:
  struct Close {
    void operator()(fid_mr* mr) const { ck_assert_int_eq(fi_close(&mr->fid), 0); }
  };
  std::vector<char> x_host;
  std::unique_ptr<DeviceMemory> x_device;
  std::unique_ptr<fid_mr, Close> x_region;
};

inline std::vector<char> head(const std::vector<char>& bytes, size_t length) {
  return {bytes.begin(), bytes.begin() + ptrdiff_t(length)};
}

struct HmemPorts {
  explicit HmemPorts(bool to_self = false)
      : root(hmem_ask()), a(root), b(root), target(to_self ? a : b), address(a.insert(target)) {}

  void send(const void* from, size_t length, uint64_t tag, void* context) {
    const WithoutCuda scope;
    ssize_t rc;
    while ((rc = fi_tsend(a.ep, from, length, nullptr, address, tag, context)) == -FI_EAGAIN)
      both();
    ck_assert_int_eq(rc, 0);
  }
  void receive(void* to, size_t length, uint64_t tag, void* context) {
    const WithoutCuda scope;
    ck_assert_int_eq(fi_trecv(target.ep, to, length, nullptr, FI_ADDR_UNSPEC, tag, 0, context), 0);
  }
  void both() {
    const WithoutCuda scope;
    a.progress();
    target.progress();
  }
  /// Waits for the completions of a receive and of its send. Returns that of the receive.
  fi_cq_tagged_entry finish() {
    const WithoutCuda scope;
    if (&a != &target) {
      const fi_cq_tagged_entry received = target.wait(&a);
      a.wait(&target);
      return received;
    }
    const fi_cq_tagged_entry first = a.wait(), second = a.wait();
    return first.flags & FI_RECV ? first : second;
  }

  Root root;
  Registered registered{root};
  Port a, b;
  Port& target;
  fi_addr_t address;
};

TEST_CASE(.name = "device memory in messages");

/// Every size, both kinds of memory at both ends, and messages before and after their receives.
TEST(hmem_messages_arrive_whole_from_and_to_either_memory, 2) {
  HmemPorts ports(_i & 1);
  for (const size_t length : {0u, 1u, 8u, 64u, 65u, 4096u, 4097u, 16384u, 100'000u, 1'000'003u}) {
    for (int kinds = 0; kinds < 8; ++kinds) {
      const bool from_device = kinds & 1, to_device = kinds & 2, unexpected = kinds & 4;
      const auto message = pattern(size_t(length));
      const std::vector<char> blank(size_t(length) + 16, '-');
      Memory from(from_device, message), to(to_device, blank);
      fi_context sent, received;
      if (!unexpected) ports.receive(to.at(), size_t(length), 5, &received);
      ports.send(from.at(), size_t(length), 5, &sent);
      for (int i = 0; unexpected && i < 100; ++i) ports.both();
      if (unexpected) ports.receive(to.at(), size_t(length), 5, &received);
      const fi_cq_tagged_entry done = ports.finish();
      ck_assert_ptr_eq(done.op_context, &received);
      ck_assert_uint_eq(done.len, size_t(length));
      const auto seen = to.bytes();
      ck_assert_msg(head(seen, size_t(length)) == message, "%zu bytes, case %d", size_t(length),
                    kinds);
      ck_assert(std::all_of(seen.data() + length, seen.data() + seen.size(),
                            [](char c) { return c == '-'; }));
    }
  }
}

TEST(hmem_truncated_message_fills_what_there_is) {
  HmemPorts ports;
  for (const size_t length : {100u, 300'000u}) {
    const auto message = pattern(length);
    Memory from(true, message), to(true, std::vector<char>(length, '-'));
    fi_context sent, received;
    ports.receive(to.at(), length / 2, 5, &received);
    ports.send(from.at(), length, 5, &sent);
    const fi_cq_err_entry error = ports.target.wait_error(&ports.a);
    ck_assert_int_eq(error.err, FI_ETRUNC);
    ck_assert_uint_eq(error.olen, length - length / 2);
    ports.a.wait(&ports.b);
    ck_assert(head(to.bytes(), length / 2) == head(message, length / 2));
    ck_assert_int_eq(to.bytes()[length / 2], '-');
  }
}

TEST(hmem_multi_receive_buffer_takes_messages_of_all_sizes) {
  HmemPorts ports(false);
  const size_t lengths[] = {8, 5000, 200'000};
  const auto message = pattern(200'000);
  Memory from(true, message), buffer(true, std::vector<char>(1 << 20, '-'));
  fi_context received;
  iovec iov{buffer.at(), 1 << 20};
  fi_msg posted{};
  posted.msg_iov = &iov;
  posted.iov_count = 1;
  posted.addr = FI_ADDR_UNSPEC;
  posted.context = &received;
  ck_assert_int_eq(fi_recvmsg(ports.b.ep, &posted, FI_MULTI_RECV), 0);
  for (const size_t length : lengths) {
    ssize_t rc;
    while ((rc = fi_send(ports.a.ep, from.at(), length, nullptr, ports.address, nullptr)) ==
           -FI_EAGAIN)
      ports.both();
    ck_assert_int_eq(rc, 0);
    const fi_cq_tagged_entry done = ports.finish();
    ck_assert_uint_eq(done.len, length);
    const auto at = static_cast<char*>(done.buf) - buffer.at();
    const auto seen = buffer.bytes();
    ck_assert(std::equal(message.begin(), message.begin() + ptrdiff_t(length), seen.begin() + at));
  }
}

TEST(hmem_lists_may_mix_host_and_device_memory, 2) {
  HmemPorts ports(_i & 1);
  for (const size_t half : {16u, 3000u, 200'000u}) {
    const auto one = pattern(half), two = std::vector<char>(half, '2');
    Memory from_host(false, one), from_device(true, two);
    Memory to_device(true, std::vector<char>(half)), to_host(false, std::vector<char>(half));
    const iovec out[] = {{from_host.at(), half}, {from_device.at(), half}};
    const iovec in[] = {{to_device.at(), half}, {to_host.at(), half}};
    ck_assert_int_eq(fi_trecvv(ports.target.ep, in, nullptr, 2, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    ssize_t rc;
    while ((rc = fi_tsendv(ports.a.ep, out, nullptr, 2, ports.address, 1, nullptr)) == -FI_EAGAIN)
      ports.both();
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_eq(ports.finish().len, 2 * half);
    ck_assert(to_device.bytes() == one);
    ck_assert(to_host.bytes() == two);
  }
}

/// The memory belongs to the application again at once.
TEST(hmem_injected_message_is_what_it_was, 2) {
  HmemPorts ports(_i & 1);
  for (const size_t length : {8u, 64u, 1000u, 4096u}) {
    const auto message = pattern(length);
    Memory from(true, message), to(true, std::vector<char>(length));
    ssize_t rc;
    while ((rc = fi_tinject(ports.a.ep, from.at(), length, ports.address, 3)) == -FI_EAGAIN)
      ports.both();
    ck_assert_int_eq(rc, 0);
    fill_memory(DevicePointer(from.at()), 0, length);
    for (int i = 0; i < 20; ++i) ports.both();
    ports.receive(to.at(), length, 3, nullptr);
    ck_assert_uint_eq(ports.target.wait(&ports.a).len, length);
    ck_assert(to.bytes() == message);
  }
  Memory large(true, std::vector<char>(4097));
  ck_assert_int_eq(fi_tinject(ports.a.ep, large.at(), 4097, ports.address, 3), -FI_EMSGSIZE);
}

TEST(hmem_claimed_message_goes_to_device_memory) {
  HmemPorts ports(false);
  for (const size_t length : {40u, 200'000u}) {
    const auto message = pattern(length);
    Memory from(true, message), to(true, std::vector<char>(length));
    fi_context claimed;
    ports.send(from.at(), length, 6, nullptr);
    const iovec iov{to.at(), length};
    fi_msg_tagged peek{};
    peek.addr = FI_ADDR_UNSPEC;
    peek.tag = 6;
    peek.context = &claimed;
    fi_cq_tagged_entry entry{};
    for (;;) {
      ck_assert_int_eq(fi_trecvmsg(ports.b.ep, &peek, FI_PEEK | FI_CLAIM), 0);
      const ssize_t rc = fi_cq_read(ports.b.cq, &entry, 1);
      if (rc == 1) break;
      fi_cq_err_entry miss{};
      ck_assert_int_eq(fi_cq_readerr(ports.b.cq, &miss, 0), 1);
      ck_assert_int_eq(miss.err, FI_ENOMSG);
      ports.both();
    }
    fi_msg_tagged take = peek;
    take.msg_iov = &iov;
    take.iov_count = 1;
    ck_assert_int_eq(fi_trecvmsg(ports.b.ep, &take, FI_CLAIM), 0);
    ck_assert_uint_eq(ports.b.wait(&ports.a).len, length);
    ports.a.wait(&ports.b);
    ck_assert(to.bytes() == message);
  }
}

TEST_CASE(.name = "copies of messages by CUDA");

/// A copy on the receiver's side fails: no success is reported at either end.
TEST(hmem_failed_copy_is_an_error_at_both_ends) {
  HmemPorts ports(false);
  for (const size_t length : {32u, 3000u, 200'000u}) {
    if (g_direct && length > 100) break;  // the NIC writes the memory
    Memory from(false, pattern(length)), to(true, std::vector<char>(length));
    const iovec iov{from.at(), length};
    fi_context sent, received;
    fi_msg_tagged message{};
    message.msg_iov = &iov;
    message.iov_count = 1;
    message.addr = ports.address;
    message.tag = 4;
    message.context = &sent;
    ports.receive(to.at(), length, 4, &received);
    ck_assert_int_eq(softcuda_control("fail cuMemcpyAsync error=719 times=2"), 0);
    ssize_t rc;
    while ((rc = fi_tsendmsg(ports.a.ep, &message, FI_DELIVERY_COMPLETE)) == -FI_EAGAIN)
      ports.both();
    ck_assert_int_eq(rc, 0);
    const fi_cq_err_entry error = ports.b.wait_error(&ports.a);
    ck_assert_int_eq(error.err, FI_EIO);
    ck_assert_ptr_eq(error.op_context, &received);
    const fi_cq_err_entry theirs = ports.a.wait_error(&ports.b);
    ck_assert_int_eq(theirs.err, FI_EIO);
    ck_assert_ptr_eq(theirs.op_context, &sent);
    ck_assert_int_eq(softcuda_control("clear"), 0);
  }
  exchange(ports.a, ports.b, ports.address, 1000);
}

/// A copy on the sender's side fails: nothing arrives, or an error if the receiver has matched the
/// message already.
TEST(hmem_unreadable_memory_is_not_sent) {
  HmemPorts ports;
  exchange(ports.a, ports.b, ports.address, 8);
  for (const size_t length : {32u, 3000u, 200'000u}) {
    if (g_direct && length > 100) break;  // the NIC reads the memory
    Memory from(true, pattern(length)), to(false, std::vector<char>(length, '-'));
    fi_context sent, received;
    ports.receive(to.at(), length, 4, &received);
    ck_assert_int_eq(softcuda_control("fail cuMemcpyAsync error=719 times=1000"), 0);
    ports.send(from.at(), length, 4, &sent);
    const fi_cq_err_entry error = ports.a.wait_error(&ports.b);
    ck_assert_int_eq(error.err, FI_EIO);
    ck_assert_ptr_eq(error.op_context, &sent);
    fi_cancel(&ports.b.ep->fid, &received);
    const fi_cq_err_entry theirs = ports.b.wait_error(&ports.a);
    ck_assert(theirs.err == FI_ECANCELED || theirs.err == FI_EIO);
    ck_assert_ptr_eq(theirs.op_context, &received);
    ck_assert(to.bytes() == std::vector<char>(length, '-'));
    ck_assert_int_eq(softcuda_control("clear"), 0);
  }
  exchange(ports.a, ports.b, ports.address, 1000);
}

}  // namespace erdma::test
