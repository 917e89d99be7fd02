// FI_OPT_CUDA_API_PERMITTED=false: GPU memory without a call of CUDA, on an adapter whose stores to
// a GPU are late, in both of its personalities.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "fabric/hmem_rma_cases.h"
#include "fake/captured_log.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

void on_nic(const char* shm, bool peermem, bool dmabuf) {
  g_device = "erdma_0";
  g_cuda_permitted = false;
  setenv("FI_ERDMA_SHM", shm, 1);
  setenv("SOFTERDMA_POSTED", "1", 1);
  setenv("SOFTERDMA_PEERMEM", peermem ? "1" : "0", 1);
  setenv("SOFTERDMA_DMABUF", dmabuf ? "1" : "0", 1);
}
void by_writing() {
  on_nic("off", true, false);
  setenv("FI_ERDMA_RENDEZVOUS", "write", 1);
}
void by_reading() {
  on_nic("off", false, true);
  setenv("FI_ERDMA_RENDEZVOUS", "read", 1);
}
/// Shared memory is permitted, but not used, because it would copy by CUDA.
void with_shared_memory() {
  on_nic("auto", true, true);
}
void without_cache() {
  by_writing();
  setenv("FI_ERDMA_MR_CACHE", "off", 1);
}
/// Each test decides whether its ports may call CUDA.
void asking() {
  by_writing();
  g_cuda_permitted = true;
}

int control_adapter(const char* line) {
  auto* control = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  ck_assert_ptr_nonnull(reinterpret_cast<void*>(control));
  return control(line);
}

size_t warnings_of(const char* text) {
  const std::lock_guard guard(g_log_mutex);
  size_t count = 0;
  for (const auto& line : g_log)
    count += line.level == FI_LOG_WARN && line.text.find(text) != std::string::npos;
  return count;
}

/// An endpoint that is not enabled.
struct Bare {
  explicit Bare(Root& root) {
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  }
  ~Bare() { ck_assert_int_eq(fi_close(&ep->fid), 0); }
  int permit(bool permitted) {
    return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, kCudaApiPermitted, &permitted, sizeof(permitted));
  }
  bool permitted() {
    bool permitted = false;
    size_t size = sizeof(permitted);
    ck_assert_int_eq(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, kCudaApiPermitted, &permitted, &size), 0);
    return permitted;
  }
  fid_ep* ep = nullptr;
};

constexpr char kRefused[] = "GPU memory can't be used without calling CUDA";

}  // namespace

SUITE(.run = on_simulated_devices);
SET_UPS("device memory in messages", by_writing, by_reading, with_shared_memory, without_cache);
SET_UPS("device memory in RMA", by_writing, by_reading, with_shared_memory);
// These cases count CUDA's copies or make them fail, and here are none.
LEFT_OUT("copies of messages by CUDA");
LEFT_OUT("copies of RMA by CUDA");

TEST_CASE(.set_up = asking);

TEST(cuda_can_be_forbidden_where_the_nic_reaches_the_gpu) {
  Root root(hmem_ask());
  Bare one(root), two(root);
  ck_assert(one.permitted());
  ck_assert_int_eq(one.permit(true), 0);
  ck_assert_int_eq(one.permit(false), 0);
  ck_assert(!one.permitted());
  const auto calls = softcuda_calls(nullptr);
  ck_assert_int_eq(two.permit(false), 0);  // remembered
  ck_assert_uint_eq(softcuda_calls(nullptr), calls);
  ck_assert_int_eq(one.permit(true), 0);
  ck_assert(one.permitted());
  ck_assert_uint_eq(warnings_of(""), 0);
}

TEST(cuda_can_not_be_forbidden_to_an_enabled_endpoint) {
  Root root(hmem_ask());
  Port port(root);
  bool permitted = false;
  ck_assert_int_eq(fi_setopt(&port.ep->fid, FI_OPT_ENDPOINT, kCudaApiPermitted, &permitted, 1),
                   -FI_EOPBADSTATE);
  ck_assert_int_eq(fi_setopt(&port.ep->fid, FI_OPT_ENDPOINT, kCudaApiPermitted, &permitted, 4),
                   -FI_EINVAL);
}

/// Memory can't be registered, or transfers fail: one line each time, and no second attempt.
TEST(cuda_is_needed_where_the_nic_does_not_reach_the_gpu, 4) {
  constexpr const char* kFailing[] = {"wr n=1 times=100 op=read status=general",
                                      "wr n=2 times=100 op=read status=general",
                                      "wr n=1 times=100 op=write status=general"};
  if (_i == 0) {
    setenv("SOFTERDMA_PEERMEM", "0", 1);
    setenv("SOFTERDMA_DMABUF", "0", 1);
  }
  setenv("FI_ERDMA_PEER_TIMEOUT", "500", 1);
  Root root(hmem_ask());
  Bare bare(root);
  if (_i > 0) ck_assert_int_eq(control_adapter(kFailing[_i - 1]), 0);
  ck_assert_int_eq(bare.permit(false), -FI_EOPNOTSUPP);
  ck_assert(bare.permitted());
  ck_assert_uint_eq(warnings_of(kRefused), 1);
  const auto calls = softcuda_calls(nullptr);
  ck_assert_int_eq(bare.permit(false), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(softcuda_calls(nullptr), calls);
}

/// Want of GPU memory and of descriptors passes.
TEST(failure_that_may_pass_is_tried_again, 2) {
  on_nic("off", false, true);
  Root root(hmem_ask());
  Bare bare(root);
  ck_assert_int_eq(softcuda_control(_i ? "fail cuMemAlloc error=2 times=1"
                                       : "fail cuMemGetHandleForAddressRange error=304 times=1"),
                   0);
  ck_assert_int_eq(bare.permit(false), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(warnings_of("Load nvidia-peermem"), 0);
  ck_assert_int_eq(bare.permit(false), 0);
}

TEST(cuda_can_not_be_forbidden_without_device_memory) {
  Ask ask = hmem_ask();
  ask.caps &= ~FI_HMEM;
  Root root(ask);
  Bare bare(root);
  ck_assert_int_eq(bare.permit(false), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(warnings_of(kRefused), 1);
}

/// The endpoint also knows memory that was registered before the option was set.
TEST(earlier_registrations_are_known) {
  Root root(hmem_ask());
  g_registrar = root.domain;
  const auto message = pattern(3000);
  Memory from(true, message), to(true, std::vector<char>(3000));
  g_cuda_permitted = false;
  Port a(root), b(root);
  const fi_addr_t address = a.insert(b);
  const WithoutCuda scope;
  ck_assert_int_eq(fi_trecv(b.ep, to.at(), 3000, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
  ssize_t rc;
  while ((rc = fi_tsend(a.ep, from.at(), 3000, nullptr, address, 1, nullptr)) == -FI_EAGAIN)
    a.progress();
  ck_assert_int_eq(rc, 0);
  b.wait(&a);
  a.wait(&b);
  ck_assert(to.bytes() == message);
}

/// The application may be in a state where CUDA must not wait for the GPU.
TEST(registration_for_an_endpoint_that_may_not_call_cuda_waits_for_nothing) {
  g_cuda_permitted = false;
  HmemPorts ports;
  const auto calls = softcuda_calls("cuPointerSetAttribute");
  const Memory memory(true, pattern(3000));
  ck_assert_uint_eq(softcuda_calls("cuPointerSetAttribute"), calls);
}

/// The memory is registered, but not with the NIC: the sender gets an error, and the CPU does not
/// access the memory.
TEST(memory_that_the_nic_refused_is_not_touched) {
  g_cuda_permitted = false;
  HmemPorts ports;
  exchange(ports.a, ports.b, ports.address, 1000);
  ck_assert_int_eq(softcuda_control("dmabuf off"), 0);
  for (const size_t length : {32u, 3000u, 200'000u}) {
    ck_assert_int_eq(control_adapter("reg errno=EFAULT"), 0);
    Memory from(true, pattern(length)), to(false, std::vector<char>(length, '-'));
    fi_context sent, received;
    ports.receive(to.at(), length, 4, &received);
    ports.send(from.at(), length, 4, &sent);
    const fi_cq_err_entry error = ports.a.wait_error(&ports.b);
    ck_assert_int_eq(error.err, FI_EOPNOTSUPP);
    ck_assert_ptr_eq(error.op_context, &sent);
    fi_cancel(&ports.b.ep->fid, &received);
    const fi_cq_err_entry theirs = ports.b.wait_error(&ports.a);
    ck_assert(theirs.err == FI_ECANCELED || theirs.err == FI_EIO);
    ck_assert(to.bytes() == std::vector<char>(length, '-'));
  }
}

TEST(memory_for_peers_that_the_nic_refused_can_not_be_registered) {
  g_cuda_permitted = false;
  Root root(hmem_rma_ask());
  Port port(root);
  const DeviceMemory memory(8192);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(softcuda_control("dmabuf off"), 0);
  ck_assert_int_eq(control_adapter("reg errno=EFAULT"), 0);
  ck_assert_int_eq(
      fi_mr_reg(root.domain, memory.at(0), 8192, FI_REMOTE_READ, 0, 0, 0, &mr, nullptr),
      -FI_EOPNOTSUPP);
}

/// The copy of a packet's payload fails, and so does its repetition: an error, and the next message
/// arrives.
TEST(copy_that_the_nic_fails_is_an_error) {
  g_cuda_permitted = false;
  HmemPorts ports;
  const auto message = pattern(32);
  Memory from(false, message), to(true, std::vector<char>(32));
  const auto move = [&](fi_context& received) {
    ports.receive(to.at(), 32, 1, &received);
    ports.send(from.at(), 32, 1, nullptr);
  };
  fi_context received;
  move(received);
  ports.finish();
  ck_assert_int_eq(control_adapter("wr n=1 times=2 op=write status=general"), 0);
  move(received);
  const fi_cq_err_entry error = ports.b.wait_error(&ports.a);
  ck_assert_ptr_eq(error.op_context, &received);
  ck_assert_int_eq(error.err, FI_EIO);
  ck_assert_int_eq(control_adapter("clear"), 0);
  ports.a.wait(&ports.b);
  move(received);
  ports.finish();
  ck_assert(to.bytes() == message);
}
