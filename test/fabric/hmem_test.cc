// Tests device memory within a host: offers, registrations and messages.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

#include "fabric/hmem_rma_cases.h"
#include "fabric/shared_receive_rig.h"
#include "fake/captured_log.h"

namespace {

using namespace erdma::test;

int ask(const Ask& wanted, fi_info** info = nullptr) {
  fi_info* hints = fi_allocinfo();
  hints->caps = wanted.caps;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = wanted.mr_mode;
  fi_info* found = nullptr;
  const int rc = provider()->getinfo(wanted.version, nullptr, nullptr, 0, hints, &found);
  fi_freeinfo(hints);
  if (info)
    *info = found;
  else
    fi_freeinfo(found);
  return rc;
}

int register_memory(Root& root, void* at, size_t length, fi_hmem_iface iface, uint64_t access) {
  const iovec iov{at, length};
  fi_mr_attr attr{};
  attr.mr_iov = &iov;
  attr.iov_count = 1;
  attr.access = access;
  attr.iface = iface;
  fid_mr* mr = nullptr;
  const int rc = fi_mr_regattr(root.domain, &attr, 0, &mr);
  if (rc == 0) ck_assert_int_eq(fi_close(&mr->fid), 0);
  return rc;
}

constexpr uint64_t kLocal = FI_SEND | FI_RECV;

}  // namespace

SET_UPS("device memory in messages", nullptr);
SET_UPS("copies of messages by CUDA", nullptr);
SET_UPS("device memory in RMA", nullptr);
SET_UPS("copies of RMA by CUDA", nullptr);

TEST(device_memory_is_offered_to_who_asks_for_it) {
  fi_info* info = nullptr;
  ck_assert_int_eq(ask(hmem_ask(), &info), 0);
  ck_assert(info->caps & FI_HMEM);
  ck_assert(info->tx_attr->caps & FI_HMEM);
  ck_assert(info->rx_attr->caps & FI_HMEM);
  ck_assert(info->domain_attr->mr_mode & FI_MR_HMEM);
  fi_freeinfo(info);
}

/// Without FI_HMEM the driver is not even opened.
TEST(nobody_else_has_to_do_with_cuda) {
  Ask plain = hmem_ask();
  plain.caps = 0;
  fi_info* info = nullptr;
  ck_assert_int_eq(ask(plain, &info), 0);
  ck_assert(!(info->caps & FI_HMEM));
  ck_assert(!(info->domain_attr->mr_mode & FI_MR_HMEM));
  fi_freeinfo(info);
  Root root;
  Port a(root), b(root);
  for (const size_t length : {8u, 200'000u}) exchange(a, b, a.insert(b), length);
  std::vector<char> buffer(8);
  ck_assert_int_eq(register_memory(root, buffer.data(), 8, FI_HMEM_SYSTEM, kLocal), 0);
  ck_assert_uint_eq(softcuda_calls(nullptr), 0);
}

TEST(device_memory_is_not_offered_where_it_can_not_be_had, 7) {
  Ask wanted = hmem_ask();
  if (_i == 0) setenv("FI_ERDMA_CUDA", "off", 1);
  if (_i == 1) setenv("SOFTCUDA_DEVICES", "0", 1);
  if (_i == 2) wanted.mr_mode = 0;
  if (_i == 3) wanted.mr_mode = 1;  // FI_MR_BASIC
  if (_i == 4) wanted.version = FI_VERSION(1, 8);
  if (_i == 5) wanted.caps |= FI_RMA;  // the hints lack the modes of a target
  if (_i == 6) wanted.caps |= FI_ATOMIC;
  ck_assert_int_eq(ask(wanted), -FI_ENODATA);
  if (_i == 0) ck_assert_uint_eq(softcuda_calls(nullptr), 0);
}

TEST(registration_asks_the_driver_what_memory_is) {
  Root root(hmem_ask());
  const DeviceMemory device(1000);
  std::vector<char> host(1000);
  ck_assert_int_eq(register_memory(root, device.at(0), 1000, FI_HMEM_CUDA, kLocal), 0);
  ck_assert_int_eq(register_memory(root, device.at(8), 900, FI_HMEM_SYSTEM, kLocal), 0);
  ck_assert_int_eq(register_memory(root, host.data(), 1000, FI_HMEM_SYSTEM, kLocal), 0);
  ck_assert_int_eq(register_memory(root, host.data(), 1000, FI_HMEM_CUDA, kLocal), -FI_EINVAL);
  ck_assert_int_eq(register_memory(root, device.at(0), 1001, FI_HMEM_CUDA, kLocal), -FI_EINVAL);
  ck_assert_int_eq(register_memory(root, host.data(), 8, FI_HMEM_ZE, kLocal), -FI_ENOSYS);
  for (const uint64_t access : {FI_REMOTE_READ, FI_REMOTE_WRITE})
    ck_assert_int_eq(register_memory(root, device.at(0), 8, FI_HMEM_CUDA, kLocal | access), 0);
}

/// Peers may read the region without a call of this process.
TEST(registered_region_has_what_was_written_before) {
  Root root(hmem_ask());
  const DeviceMemory device(1000);
  ck_assert_int_eq(cuMemsetD8_v2(device.pointer(), 'x', 1000), 0);
  ck_assert_int_eq(register_memory(root, device.at(0), 1000, FI_HMEM_CUDA, kLocal), 0);
  ck_assert(device.bytes() == std::vector<char>(1000, 'x'));
}

/// After a failed kernel CUDA answers every question with its error. The application did nothing
/// wrong with the memory.
TEST(registration_that_cuda_fails_says_so, 4) {
  constexpr const char* kFailures[] = {"fail cuPointerGetAttribute error=719 times=1000",
                                       "fail cuPointerGetAttribute error=719 n=2 times=1000"};
  Root root(hmem_ask());
  const DeviceMemory device(1000);
  std::vector<char> host(1000);
  void* const memory = _i == 3 ? host.data() : device.at(0);
  g_log.clear();
  ck_assert_int_eq(softcuda_control(kFailures[_i == 2]), 0);
  ck_assert_int_eq(
      register_memory(root, memory, 1000, _i == 1 ? FI_HMEM_SYSTEM : FI_HMEM_CUDA, kLocal),
      -FI_EIO);
  std::string said;
  for (const LogLine& line : g_log) said += line.level == FI_LOG_WARN ? line.text : "";
  ck_assert_msg(contains(said, "CUDA error 719"), "%s", said.c_str());
  ck_assert_int_eq(softcuda_control("clear"), 0);
  ck_assert_int_eq(register_memory(root, device.at(0), 1000, FI_HMEM_CUDA, kLocal), 0);
}

/// Open MPI registers each buffer that it sends or receives, always with key 0.
TEST(several_buffers_may_be_registered_with_one_requested_key) {
  Root root(hmem_ask());
  ck_assert(!(root.info->domain_attr->mr_mode & FI_MR_PROV_KEY));
  const DeviceMemory one(1000), other(1000);
  fid_mr* mr[2] = {};
  ck_assert_int_eq(fi_mr_reg(root.domain, one.at(0), 1000, kLocal, 0, 0, 0, &mr[0], nullptr), 0);
  ck_assert_int_eq(fi_mr_reg(root.domain, other.at(0), 1000, kLocal, 0, 0, 0, &mr[1], nullptr), 0);
  for (fid_mr* each : mr) ck_assert_int_eq(fi_close(&each->fid), 0);
}

TEST(domain_without_the_capability_refuses_the_interface) {
  Root root;
  const DeviceMemory device(8);
  ck_assert_int_eq(register_memory(root, device.at(0), 8, FI_HMEM_CUDA, kLocal), -FI_ENOSYS);
}

TEST(endpoint_makes_no_promise_about_cuda_that_it_can_not_keep) {
  HmemPorts ports;
  bool permitted = false;
  ck_assert_int_eq(fi_setopt(&ports.a.ep->fid, FI_OPT_ENDPOINT, 10, &permitted, sizeof(permitted)),
                   -FI_EOPNOTSUPP);
  permitted = true;
  ck_assert_int_eq(fi_setopt(&ports.a.ep->fid, FI_OPT_ENDPOINT, 10, &permitted, sizeof(permitted)),
                   0);
}

/// An endpoint says the same before and after fi_enable.
TEST(atomic_operations_are_refused) {
  HmemPorts ports;
  fid_ep* ep = nullptr;
  fid_ep* alias = nullptr;
  ck_assert_int_eq(fi_endpoint(ports.root.domain, ports.root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_alias(ep, &alias, 0), 0);
  for (fid_ep* each : {ports.a.ep, ep, alias}) {
    size_t count = 0;
    ck_assert_int_eq(fi_atomicvalid(each, FI_UINT64, FI_SUM, &count), -FI_ENOSYS);
    ck_assert_int_eq(fi_fetch_atomicvalid(each, FI_UINT64, FI_SUM, &count), -FI_ENOSYS);
    ck_assert_int_eq(fi_compare_atomicvalid(each, FI_UINT64, FI_CSWAP, &count), -FI_ENOSYS);
  }
  ck_assert_int_eq(fi_close(&alias->fid), 0);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
}

/// fi_atomic(3): the domain reports what suitably configured endpoints can do. On a domain with
/// FI_HMEM these are the endpoints without.
TEST(a_domain_has_the_atomic_operations_of_its_endpoints_without_device_memory) {
  Ask ask = hmem_ask();
  ask.caps |= FI_RMA;
  ask.mr_mode |= FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  Root root(ask);
  fi_atomic_attr attr{};
  ck_assert_int_eq(fi_query_atomic(root.domain, FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC), 0);
  ck_assert_uint_eq(attr.size, 8);
  fi_info* const with = std::exchange(root.info, fi_dupinfo(root.info));
  root.info->caps = (root.info->caps & ~FI_HMEM) | FI_ATOMIC;
  root.info->tx_attr->caps = root.info->rx_attr->caps = 0;
  {
    Port port(root);
    const fi_addr_t address = port.insert(port);
    uint64_t cell = 40, operand = 2, result = 0;
    fid_mr* mr = nullptr;
    size_t count = 0;
    ck_assert_int_eq(fi_fetch_atomicvalid(port.ep, FI_UINT64, FI_SUM, &count), 0);
    ck_assert_uint_eq(attr.count, count);
    ck_assert_int_eq(
        fi_mr_reg(root.domain, &cell, 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr),
        0);
    ck_assert_int_eq(fi_fetch_atomic(port.ep, &operand, 1, nullptr, &result, nullptr, address,
                                     reinterpret_cast<uintptr_t>(&cell), fi_mr_key(mr), FI_UINT64,
                                     FI_SUM, nullptr),
                     0);
    port.wait();
    ck_assert_uint_eq(result, 40);
    ck_assert_uint_eq(cell, 42);
    ck_assert_int_eq(fi_close(&mr->fid), 0);
  }
  fi_freeinfo(with);
}

/// The provider's thread, which makes progress here, has no CUDA context.
TEST(provider_s_own_thread_places_messages) {
  Ask automatic = hmem_ask();
  automatic.progress = FI_PROGRESS_AUTO;
  Root root(automatic);
  Port a(root), b(root);
  const fi_addr_t address = a.insert(b);
  const auto message = pattern(200'000);
  Memory from(true, message), to(true, std::vector<char>(200'000));
  ck_assert_int_eq(fi_trecv(b.ep, to.at(), 200'000, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
  ck_assert_int_eq(fi_tsend(a.ep, from.at(), 200'000, nullptr, address, 1, nullptr), 0);
  b.wait();
  a.wait();
  ck_assert(to.bytes() == message);
}

namespace {

constexpr size_t kLengths[] = {8, 5000, 1'000'003};

struct Pipe {
  int ends[2];
  Pipe() { ck_assert_int_eq(pipe(ends), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  int in() const { return ends[0]; }
  int out() const { return ends[1]; }
};

/// The other process: sends from its GPU memory. Returns its exit status.
int sender(int from_parent, int to_parent) {
  Root root(hmem_ask());
  Port port(root);
  std::vector<char> theirs = port.name();
  const auto size = ssize_t(theirs.size());
  if (read(from_parent, theirs.data(), size_t(size)) != size) return 1;
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  if (fi_av_insert(port.av, theirs.data(), 1, &address, 0, nullptr) != 1) return 2;
  for (const size_t length : kLengths) {
    Memory message(true, pattern(length));
    ssize_t rc;
    while ((rc = fi_tsend(port.ep, message.at(), length, nullptr, address, length, nullptr)) ==
           -FI_EAGAIN)
      port.progress();
    if (rc != 0 || !(port.wait().flags & FI_SEND)) return 3;
  }
  char byte = 0;  // the process lives until all messages have arrived
  return write(to_parent, &byte, 1) == 1 && read(from_parent, &byte, 1) == 1 ? 0 : 4;
}

}  // namespace

TEST(gpu_memory_goes_from_process_to_process, 2) {
  setenv("FI_ERDMA_CMA", _i ? "on" : "off", 1);
  Pipe to_child, to_parent;
  const pid_t pid = fork();
  if (pid == 0) _exit(sender(to_child.in(), to_parent.out()));
  Root root(hmem_ask());
  Port port(root);
  const auto name = port.name();
  ck_assert_int_eq(write(to_child.out(), name.data(), name.size()), ssize_t(name.size()));
  for (const size_t length : kLengths) {
    Memory to(true, std::vector<char>(length));
    ck_assert_int_eq(
        fi_trecv(port.ep, to.at(), length, nullptr, FI_ADDR_UNSPEC, length, 0, nullptr), 0);
    ck_assert_uint_eq(port.wait().len, length);
    ck_assert(to.bytes() == pattern(length));
  }
  char byte = 0;
  ck_assert_int_eq(write(to_child.out(), &byte, 1), 1);
  int status = -1;
  while (waitpid(pid, &status, WNOHANG) == 0) port.progress();
  ck_assert_int_eq(status, 0);
}

/// A peer that dies while its message is being fetched: one error, and the rest goes on.
TEST(death_of_the_sender_ends_the_receive) {
  Pipe to_child, to_parent;
  const pid_t pid = fork();
  if (pid == 0) _exit(sender(to_child.in(), to_parent.out()));
  Root root(hmem_ask());
  Port port(root);
  const auto name = port.name();
  ck_assert_int_eq(write(to_child.out(), name.data(), name.size()), ssize_t(name.size()));
  std::vector<char> small(8);
  ck_assert_int_eq(fi_trecv(port.ep, small.data(), 8, nullptr, FI_ADDR_UNSPEC, 8, 0, nullptr), 0);
  port.wait();
  kill(pid, SIGKILL);
  ck_assert_int_eq(waitpid(pid, nullptr, 0), pid);
  Memory to(true, std::vector<char>(kLengths[2]));
  fi_context received;
  ck_assert_int_eq(
      fi_trecv(port.ep, to.at(), kLengths[2], nullptr, FI_ADDR_UNSPEC, kLengths[2], 0, &received),
      0);
  // The message may or may not have been announced before the death. If not, the wildcard receive
  // keeps waiting for other peers.
  fi_cq_tagged_entry entry{};
  int errors = 0;
  for (int i = 0; i < 1000; ++i) {
    const ssize_t rc = fi_cq_read(port.cq, &entry, 1);
    ck_assert_int_ne(rc, 1);
    if (rc != -FI_EAVAIL) continue;
    fi_cq_err_entry error{};
    ck_assert_int_eq(fi_cq_readerr(port.cq, &error, 0), 1);
    ck_assert_ptr_eq(error.op_context, &received);
    ++errors;
  }
  ck_assert_int_le(errors, 1);
  exchange(port, port, port.insert(port), 1000);
}

/// An endpoint without FI_HMEM could not copy into the context's buffers. A context without
/// capabilities of its own has FI_HMEM from its domain.
TEST(a_shared_context_with_device_memory_takes_no_endpoint_without, 3) {
  Root root(hmem_rma_ask());
  fid_ep* shared = nullptr;
  fi_rx_attr attr = *root.info->rx_attr;
  if (_i == 1) attr.caps = 0;
  ck_assert_int_eq(fi_srx_context(root.domain, _i == 2 ? nullptr : &attr, &shared, nullptr), 0);
  root.info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  for (const int expected : {0, -FI_EINVAL}) {
    fid_ep* ep = nullptr;
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &shared->fid, 0), expected);
    ck_assert_int_eq(fi_close(&ep->fid), 0);
    for (uint64_t* caps : {&root.info->caps, &root.info->tx_attr->caps, &root.info->rx_attr->caps})
      *caps &= ~FI_HMEM;
  }
  ck_assert_int_eq(fi_close(&shared->fid), 0);
}

TEST(a_shared_context_without_capabilities_receives_into_device_memory, 2) {
  Shared shared(hmem_ask(), FI_WAIT_NONE, 0, _i ? WithCaps::no_attr : WithCaps::none);
  for (const size_t length : kLengths) {
    const auto message = pattern(length);
    Memory to(true, std::vector<char>(length));
    ck_assert_int_eq(
        fi_trecv(shared.srx, to.at(), length, nullptr, FI_ADDR_UNSPEC, length, 0, nullptr), 0);
    ck_assert_int_eq(
        fi_tsend(shared.sender.ep, message.data(), length, nullptr, shared.to[_i], length, nullptr),
        0);
    ck_assert_uint_eq(shared.wait().len, length);
    shared.sender.wait();
    ck_assert(to.bytes() == message);
  }
}

/// The endpoint can't access device memory that its domain has registered.
TEST(endpoint_without_the_capability_refuses_peers_device_memory, 2) {
  const bool reads = _i != 0;
  Root root(hmem_rma_ask());
  Port initiator(root);
  for (uint64_t* caps : {&root.info->caps, &root.info->tx_attr->caps, &root.info->rx_attr->caps})
    *caps &= ~FI_HMEM;
  Port target(root);
  const fi_addr_t address = initiator.insert(target);
  Memory memory(true, std::vector<char>(4096, '-'));
  Region region(root, memory.at(), 4096);
  std::vector<char> local(4096, '+');
  for (const size_t length : {8u, 4096u}) {
    fi_context context;
    ssize_t rc;
    while ((rc = reads ? fi_read(initiator.ep, local.data(), length, nullptr, address,
                                 uint64_t(memory.at()), region.key(), &context)
                       : fi_write(initiator.ep, local.data(), length, nullptr, address,
                                  uint64_t(memory.at()), region.key(), &context)) == -FI_EAGAIN) {
      initiator.progress();
      target.progress();
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(initiator.wait_error(&target).err, FI_EACCES);
  }
  ck_assert(memory.bytes() == std::vector<char>(4096, '-'));
  ck_assert(local == std::vector<char>(4096, '+'));
}
