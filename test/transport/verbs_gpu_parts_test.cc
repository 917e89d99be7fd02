// Tests which memory of GPUs is registered with the NIC: of several GPUs, and of long allocations.
#include <dlfcn.h>

#include <deque>

#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/gpu_refusals.h"
#include "transport/verbs/open_region.h"
#include "transport/verbs_gpu_scene.h"

namespace erdma::test {
namespace {

using transport::verbs::Registration;

/// The adapter refuses the next registration by its address.
void refuse_next_pin() {
  const auto control =
      reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  ck_assert_int_eq(control("reg errno=EFAULT times=1"), 0);
}

/// Registers it for the application, and ends that.
void open_region(const Scene& scene, const DeviceMemory& memory) {
  transport::verbs::GpuMemoryRegistrar registrar(*scene.device, *hmem::Cuda::get());
  ck_assert(bool(registrar.open({memory.at(0), memory.length()}, nullptr, true, false)));
}

SUITE(.run = on_simulated_devices);

/// Whether memory can be registered may differ between GPUs: not all have dmabuf.
TEST(one_gpu_without_a_way_leaves_the_others_theirs) {
  setenv("SOFTCUDA_DEVICES", "2", 1);
  ways(0, 1);
  Scene scene;
  const DeviceMemory there(8192, 1), here(8192, 0), also_here(8192, 0);
  Registration made;
  ck_assert_int_eq(softcuda_control("dmabuf off"), 0);
  ck_assert_int_eq(scene.registrations.acquire(here.at(0), 8192, kReads, made), -FI_EOPNOTSUPP);
  ck_assert_int_eq(softcuda_control("dmabuf on"), 0);
  (void)scene.key(there);
  ck_assert(contains(warnings(), "GPU 0"));
  const unsigned long exports = softcuda_calls("cuMemGetHandleForAddressRange");
  for (const DeviceMemory* memory : {&here, &also_here})
    ck_assert_int_eq(scene.registrations.acquire(memory->at(0), 8192, kReads, made),
                     -FI_EOPNOTSUPP);
  ck_assert_uint_eq(softcuda_calls("cuMemGetHandleForAddressRange"), exports);
  ck_assert(warnings().empty());
}

/// A module that pins memory of a GPU may refuse some of it. The NIC reaches the rest, also if a
/// region of the application shows that only after the refusal.
TEST(one_allocation_that_can_not_be_pinned_leaves_the_others_theirs, 3) {
  ways(1, 0);
  Scene scene;
  const DeviceMemory pinned(8192), refused(8192), other(8192);
  Registration made;
  if (_i == 0) (void)scene.key(pinned);
  if (_i == 1) open_region(scene, pinned);
  refuse_next_pin();
  ck_assert_int_eq(scene.registrations.acquire(refused.at(0), 8192, kReads, made), -FI_EOPNOTSUPP);
  const std::string said = warnings();
  ck_assert(contains(said, "nvidia-peermem") == (_i == 2));
  if (_i == 2) open_region(scene, pinned);
  if (_i < 2) {
    ck_assert(contains(said, "some GPU memory"));
    ck_assert_int_eq(scene.registrations.acquire(refused.at(0), 8192, kReads, made),
                     -FI_EOPNOTSUPP);
  }
  (void)scene.key(other);
  ck_assert(warnings().empty());
}

TEST(a_refusal_of_a_gpu_that_is_over_costs_no_calls) {
  ways(1, 0);
  const DeviceMemory memory(8192), other(8192);
  unsigned long calls[2];
  for (const bool refused : {false, true}) {
    Scene scene;
    Registration made;
    if (refused) {
      refuse_next_pin();
      ck_assert_int_eq(scene.registrations.acquire(other.at(0), 8192, kReads, made),
                       -FI_EOPNOTSUPP);
      open_region(scene, other);
    }
    (void)scene.key(memory);
    const unsigned long before = softcuda_calls(nullptr);
    (void)scene.key(memory);
    calls[refused] = softcuda_calls(nullptr) - before;
  }
  ck_assert_uint_eq(calls[0], calls[1]);
}

/// Otherwise each message would ask CUDA and the kernel again.
TEST(each_of_many_refused_allocations_is_tried_once) {
  constexpr unsigned kMany = 200;
  ways(0, 1);
  Scene scene;
  std::deque<DeviceMemory> memory;
  Registration made;
  for (unsigned i = 0; i < kMany; ++i) memory.emplace_back(4096);
  ck_assert_int_eq(softcuda_control("fail cuMemGetHandleForAddressRange error=1 times=200"), 0);
  for (int messages = 0; messages < 2; ++messages)
    for (const DeviceMemory& one : memory)
      ck_assert_int_eq(scene.registrations.acquire(one.at(0), 4096, kReads, made), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(softcuda_calls("cuMemGetHandleForAddressRange"), kMany);
}

TEST(refused_allocations_whose_ids_have_the_same_remainder_are_all_known) {
  constexpr uint64_t kFirst = 7, kStep = 1024;
  transport::verbs::GpuRefusals refusals;
  for (const int times : {1, 2})
    for (uint64_t id = kFirst; id < kFirst + 4 * kStep; id += kStep) {
      ck_assert_int_eq(refusals.contains(-1, id), times == 2);
      refusals.add(id);
    }
  // The oldest makes room for one more.
  refusals.add(kFirst + 4 * kStep);
  for (uint64_t id = kFirst; id <= kFirst + 4 * kStep; id += kStep)
    ck_assert_int_eq(refusals.contains(-1, id), id != kFirst);
}

/// Of a long allocation, the NIC registers what an access needs, and keeps it for others nearby.
TEST(an_allocation_longer_than_a_region_is_registered_in_parts, 2) {
  constexpr size_t kMost = 1 << 20;
  setenv("SOFTERDMA_MAX_MR_SIZE", "1M", 1);
  ways(_i == 0, _i == 1);
  Scene scene;
  const DeviceMemory memory(5 * kMost);
  const auto key = [&](size_t offset, size_t length) {
    Registration made;
    ck_assert_int_eq(scene.registrations.acquire(memory.at(offset), length, kWrites, made), 0);
    scene.registrations.release(made);
    const iovec there{memory.at(offset), length}, last{memory.at(offset + length - 1), 1};
    for (const iovec& piece : {there, last}) {
      ck_assert(scene.registrations.may_be_written(&piece, 1));
      const transport::FlushTarget target = scene.registrations.acquire_flush(piece);
      ck_assert_int_eq(target.status, 0);
      ck_assert_ptr_nonnull(target.held);
      scene.registrations.release_flush(target);
    }
    return made.rkey;
  };
  const iovec unwritten{memory.at(3 * kMost), 100};
  ck_assert_uint_eq(key(0, 4096), key(5000, 4096));
  ck_assert(!scene.registrations.may_be_written(&unwritten, 1));
  ck_assert_uint_ne(key(0, 4096), key(5 * kMost - 1, 1));
  (void)key(kMost / 2 - 100, kMost / 2);
  (void)key(kMost / 2 - 100, kMost - 4096);
  ck_assert(warnings().empty());
}

/// The cause does not pass, and the application can do something about it.
TEST(what_is_longer_than_a_region_is_copied_visibly, 3) {
  constexpr size_t kMost = 1 << 20;
  setenv("SOFTERDMA_MAX_MR_SIZE", "1M", 1);
  ways(0, 1);
  Scene scene;
  const DeviceMemory memory(5 * kMost);
  const iovec whole{memory.at(0), memory.length()};
  char host = 0;
  Registration made;
  transport::verbs::GpuMemoryRegistrar of_gpu(*scene.device, *hmem::Cuda::get());
  transport::verbs::HostRegistrar of_host(*scene.device, scene.registrations);
  if (_i == 0)
    ck_assert_int_eq(scene.registrations.acquire(whole.iov_base, whole.iov_len, kReads, made),
                     -FI_EOPNOTSUPP);
  if (_i == 1) ck_assert_int_eq(of_gpu.open(whole, nullptr, true, true).error(), -FI_EOPNOTSUPP);
  if (_i == 2)
    ck_assert_int_eq(of_host.open({&host, 5 * kMost}, nullptr, true, true).error(), -FI_EOPNOTSUPP);
  const std::string said = warnings();
  ck_assert_msg(contains(said, "1048576"), "%s", said.c_str());
  ck_assert(!contains(said, "tried again"));
}

}  // namespace
}  // namespace erdma::test
