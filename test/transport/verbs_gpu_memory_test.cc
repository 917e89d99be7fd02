// Tests GPU memory that is registered with the NIC, on the simulated adapter and the simulated GPU.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/known_memory.h"
#include "transport/verbs/open_region.h"
#include "transport/verbs/shared_memory.h"
#include "transport/verbs_gpu_scene.h"

namespace {

using namespace erdma;
using erdma::test::DeviceMemory;
using erdma::test::kReads;
using erdma::test::kWrites;
using erdma::test::Scene;
using erdma::test::warnings;
using erdma::test::ways;
using transport::Access;
using transport::verbs::Registration;

/// ibv_dereg_mr() calls it first.
std::function<void()> g_deregistering;

}  // namespace

/// Comes before the one of libibverbs or of the simulated adapter.
extern "C" [[gnu::visibility("default")]] int ibv_dereg_mr(ibv_mr* region) {
  static const auto real =
      reinterpret_cast<decltype(&ibv_dereg_mr)>(dlsym(RTLD_NEXT, "ibv_dereg_mr"));
  if (g_deregistering) g_deregistering();
  return real(region);
}

SUITE(.run = erdma::test::on_simulated_devices);

TEST(allocation_is_registered_once_whatever_the_way, 3) {
  ways(_i != 1, _i != 0);
  Scene scene;
  const DeviceMemory memory(10'000);
  const Registration first = scene.acquire(memory), second = scene.acquire(memory, 5000);
  ck_assert_uint_eq(first.rkey, second.rkey);
  scene.registrations.release(first);
  scene.registrations.release(second);
  ck_assert_uint_eq(scene.key(memory), first.rkey);
  ck_assert_uint_eq(softcuda_calls("cuMemGetHandleForAddressRange"), 1);
  ck_assert(warnings().empty());
}

TEST(address_that_comes_back_is_registered_anew, 2) {
  Scene scene;
  std::unique_ptr<DeviceMemory> memory;
  void* address = nullptr;
  Registration held;
  uint32_t before = 0;
  // Another thread may have mapped memory at this address meanwhile.
  for (int tries = 0; tries < 100 && (!memory || memory->at(0) != address); ++tries) {
    if (_i && tries > 0) scene.registrations.release(held);
    memory = std::make_unique<DeviceMemory>(8192);
    address = memory->at(0);
    if (_i) held = scene.acquire(*memory);
    before = scene.key(*memory);
    memory.reset();
    memory = std::make_unique<DeviceMemory>(8192);
  }
  ck_assert_ptr_eq(memory->at(0), address);
  const uint32_t after = scene.key(*memory);
  ck_assert_uint_ne(after, before);
  if (_i) scene.registrations.release(held);
  ck_assert_uint_eq(scene.key(*memory), after);
}

/// The adapter does not wait for the null stream.
TEST(registered_memory_has_what_was_written_before) {
  Scene scene;
  const DeviceMemory memory(8192);
  for (const char value : {'a', 'b'}) {
    ck_assert_int_eq(cuMemsetD8_v2(memory.pointer(), static_cast<unsigned char>(value), 8192), 0);
    (void)scene.key(memory);
    ck_assert(memory.bytes() == std::vector<char>(8192, value));
  }
  ck_assert_uint_eq(softcuda_calls("cuPointerSetAttribute"), 1);
}

TEST(what_can_not_be_registered_is_refused_with_the_remedy) {
  ways(0, 0);
  Scene scene;
  const DeviceMemory memory(8192);
  Registration made;
  ck_assert_int_eq(scene.registrations.acquire(memory.at(0), 8192, kReads, made), -FI_EOPNOTSUPP);
  const std::string said = warnings();
  ck_assert(test::contains(said, "nvidia-peermem"));
  ck_assert(test::contains(said, std::strerror(EFAULT)));
  ck_assert_int_eq(scene.registrations.acquire(memory.at(0), 8192, kReads, made), -FI_EOPNOTSUPP);
  ck_assert(warnings().empty());
  ck_assert_uint_eq(softcuda_calls("cuMemGetHandleForAddressRange"), 1);
  const iovec list{memory.at(0), 8192};
  ck_assert(!scene.registrations.can_share(&list, 1, Access::remote_read));
}

/// The process may have no descriptor free: CUDA then reports an error of the operating system.
TEST(dmabuf_that_can_not_be_made_this_time_is_tried_again) {
  ways(0, 1);
  Scene scene;
  const DeviceMemory memory(8192);
  Registration made;
  ck_assert_int_eq(softcuda_control("fail cuMemGetHandleForAddressRange error=304 times=1"), 0);
  ck_assert_int_eq(scene.registrations.acquire(memory.at(0), 8192, kReads, made), -FI_ENOMEM);
  ck_assert(warnings().empty());
  (void)scene.key(memory);
}

/// CUDA exports no memory of a pool or of another process, but other memory.
TEST(memory_that_can_not_be_exported_is_refused_alone) {
  ways(0, 1);
  Scene scene;
  const DeviceMemory memory(8192), other(8192);
  Registration made;
  ck_assert_int_eq(softcuda_control("fail cuMemGetHandleForAddressRange error=1 times=1"), 0);
  for (int tries = 0; tries < 2; ++tries)
    ck_assert_int_eq(scene.registrations.acquire(memory.at(0), 8192, kReads, made), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(softcuda_calls("cuMemGetHandleForAddressRange"), 1);
  const std::string said = warnings();
  ck_assert(test::contains(said, "cudaMalloc") && !test::contains(said, "nvidia-peermem"));
  (void)scene.key(other);
}

/// By its address it would be registered like host memory, and its pages may move to the GPU.
TEST(managed_memory_is_never_registered) {
  ways(1, 1);
  Scene scene;
  const DeviceMemory other(8192);
  DevicePointer managed = 0;
  ck_assert_int_eq(cuMemAllocManaged(&managed, 8192, 1), 0);
  auto* const memory = reinterpret_cast<void*>(managed);
  Registration made;
  ck_assert(hmem::Cuda::get()->is_device(memory));
  ck_assert_int_eq(scene.registrations.acquire(memory, 8192, kReads, made), -FI_EOPNOTSUPP);
  transport::verbs::GpuMemoryRegistrar registrar(*scene.device, *hmem::Cuda::get());
  ck_assert_int_eq(registrar.open({memory, 8192}, nullptr, true, true).error(), -FI_EOPNOTSUPP);
  (void)scene.key(other);
  ck_assert_int_eq(cuMemFree_v2(managed), 0);
}

TEST(want_of_room_passes) {
  setenv("SOFTERDMA_MAX_MR", "1", 1);
  ways(1, 0);
  Scene scene(0);
  const DeviceMemory one(4096), two(4096);
  const Registration held = scene.acquire(one);
  Registration refused;
  ck_assert_int_eq(scene.registrations.acquire(two.at(0), 4096, kReads, refused), -FI_ENOMEM);
  scene.registrations.release(held);
  (void)scene.key(two);
}

/// Registrations that nobody uses, of GPU memory or of host memory, end where others need the room.
TEST(idle_registrations_make_room_for_others, 2) {
  setenv("SOFTERDMA_MAX_MR", "2", 1);
  ways(_i == 0, _i == 1);
  Scene scene;
  const DeviceMemory one(4096), two(4096), three(4096);
  (void)scene.key(one);
  const Registration held = scene.acquire(two);
  (void)scene.key(three);
  ck_assert_uint_eq(scene.key(two), held.rkey);
  ck_assert(scene.device->ask_for_room(ENOMEM));
  ck_assert(!scene.device->ask_for_room(ENOMEM));
  scene.registrations.release(held);
  ck_assert(!scene.device->ask_for_room(EFAULT));
}

/// The bytes that the NIC wrote to the memory that makes room are flushed later.
TEST(memory_that_makes_room_was_written_nevertheless) {
  setenv("SOFTERDMA_MAX_MR", "2", 1);
  ways(0, 1);
  Scene scene;
  const DeviceMemory written(4096), other(4096);
  const iovec list{written.at(0), 4096};
  (void)scene.key(written, kWrites);
  (void)scene.key(other);
  ck_assert(scene.registrations.may_be_written(&list, 1));
  const transport::FlushTarget target = scene.registrations.acquire_flush(list);
  ck_assert_int_eq(target.status, 0);
  ck_assert_ptr_nonnull(target.held);
  scene.registrations.release_flush(target);
}

/// The cache of host memory holds registrations, too.
TEST(other_caches_make_room_for_gpu_memory) {
  class Evictor final : public transport::verbs::RegionEvictor {
   public:
    bool evict_after(int) noexcept override {
      ++asked;
      return ibv_dereg_mr(std::exchange(region, nullptr)) == 0;
    }
    int asked = 0;
    ibv_mr* region = nullptr;
  } evictor;
  setenv("SOFTERDMA_MAX_MR", "1", 1);
  ways(0, 1);
  Scene scene;
  char bytes[8];
  evictor.region = ibv_reg_mr(scene.device->pd(), bytes, sizeof(bytes), 0);
  scene.device->set_evictor(&evictor);
  const DeviceMemory memory(4096);
  (void)scene.key(memory);
  ck_assert_int_eq(evictor.asked, 1);
  scene.device->set_evictor(nullptr);
}

/// The NIC needs registrations also of memory that the application registers itself: for RMA, and
/// for endpoints that may not call CUDA.
TEST(idle_registrations_make_room_for_regions_of_the_application, 3) {
  setenv("SOFTERDMA_MAX_MR", "2", 1);
  ways(0, 1);
  Scene scene;
  const DeviceMemory idle(4096), also_idle(4096), memory(4096);
  const iovec device{memory.at(0), 4096};
  char bytes[8];
  const iovec host{bytes, sizeof(bytes)};
  transport::verbs::GpuMemoryRegistrar of_gpu(*scene.device, *hmem::Cuda::get());
  transport::verbs::HostRegistrar of_host(*scene.device, scene.registrations);
  transport::verbs::KnownMemory known(*scene.device, *hmem::Cuda::get(), scene.registrations,
                                      transport::verbs::FlushPolicy::never, {});
  (void)scene.key(idle);
  (void)scene.key(also_idle);
  if (_i < 2) {
    transport::RegionRegistrar* registrar = &of_gpu;
    if (_i) registrar = &of_host;
    ck_assert_int_eq(registrar->open(_i ? host : device, nullptr, true, true).error(), 0);
  } else {
    const auto kept = known.keep(device, nullptr);
    ck_assert(known.can_share(&device, 1, Access::remote_write));
  }
  ck_assert(warnings().empty());
}

TEST(range_ends_with_its_allocation) {
  Scene scene;
  const DeviceMemory memory(8192);
  Registration made;
  ck_assert_int_eq(scene.registrations.acquire(memory.at(1), 8192, kReads, made), -FI_EINVAL);
}

TEST(host_memory_is_another_s_business) {
  Scene scene;
  char bytes[8];
  Registration made;
  ck_assert_int_eq(scene.registrations.acquire(bytes, 8, kReads, made), 0);
  ck_assert_int_eq(scene.host_uses, 1);
  scene.registrations.release(made);
  ck_assert_int_eq(scene.host_uses, 0);
}

TEST(each_set_of_rights_has_a_registration_of_its_own) {
  Scene scene;
  const DeviceMemory memory(8192);
  const uint32_t reads = scene.key(memory), writes = scene.key(memory, kWrites);
  ck_assert_uint_ne(reads, writes);
  ck_assert_uint_ne(scene.key(memory, 0), reads);
  ck_assert_uint_eq(scene.key(memory), reads);
  ck_assert_uint_eq(scene.key(memory, kWrites), writes);
}

TEST(only_what_the_nic_may_have_written_is_flushed) {
  Scene scene;
  const DeviceMemory memory(8192);
  const iovec list{memory.at(0), 8192};
  (void)scene.key(memory);
  ck_assert(!scene.registrations.may_be_written(&list, 1));
  (void)scene.key(memory, kWrites);
  ck_assert(scene.registrations.may_be_written(&list, 1));
}

/// A free waits for a registration by address. Such a registration ends at once, or after
/// `linger_ns` by a thread of its own.
TEST(memory_that_nobody_uses_can_be_freed, 2) {
  ways(1, 0);
  Scene scene({.linger_ns = _i ? 1'000'000u : 0u});
  ck_assert_int_eq(softcuda_control("free waits"), 0);
  for (const int rights : {kReads, kWrites, kReads}) {
    const DeviceMemory memory(8192);
    (void)scene.key(memory, rights);
  }
}

/// The driver may hold a lock while a free waits, which the registration of other memory needs. So
/// neither ends before the provider's thread ends the registration of the memory that is freed.
TEST(memory_can_be_freed_while_other_memory_is_registered, 2) {
  ways(1, 0);
  Scene scene({.linger_ns = 50'000'000});
  ck_assert_int_eq(softcuda_control("free locks"), 0);
  auto memory = std::make_unique<DeviceMemory>(8192);
  const DeviceMemory other(8192);
  (void)scene.key(*memory, _i ? kWrites : kReads);
  Context context = nullptr;
  ck_assert_int_eq(cuCtxGetCurrent(&context), 0);
  std::thread application([&] {
    ck_assert_int_eq(cuCtxSetCurrent(context), 0);
    memory.reset();
  });
  while (softcuda_calls("cuMemFree") == 0) std::this_thread::yield();
  (void)scene.key(other, _i ? kWrites : kReads);
  application.join();
}

/// The dmabuf for the flush may fail where that for the writes did not. The registration by address
/// that replaces it ends as any other.
TEST(what_is_registered_by_address_for_the_flush_alone_ends_soon, 2) {
  ways(1, 1);
  Scene scene({.linger_ns = 0});
  const DeviceMemory memory(8192);
  int ended = 0;
  if (_i) ck_assert_int_eq(softcuda_control("fail cuMemGetHandleForAddressRange error=304 n=2"), 0);
  g_deregistering = [&] { ++ended; };
  (void)scene.key(memory, kWrites);
  g_deregistering = nullptr;
  ck_assert_int_eq(ended, _i ? 2 : 0);
}

TEST(memory_in_use_stays_registered_by_its_address) {
  ways(1, 0);
  Scene scene({.linger_ns = 0});
  const DeviceMemory memory(8192);
  const Registration held = scene.acquire(memory);
  ck_assert_uint_eq(scene.key(memory), held.rkey);
  scene.registrations.release(held);
}

/// A free does not wait for a registration as a dmabuf, unlike one by address.
TEST(a_dmabuf_stays_registered, 2) {
  ways(0, 1);
  Scene scene({.linger_ns = _i ? 1'000'000u : 0u});
  ck_assert_int_eq(softcuda_control("free waits"), 0);
  const DeviceMemory memory(8192);
  const uint32_t first = scene.key(memory);
  ck_assert_uint_eq(scene.key(memory), first);
  ck_assert_uint_eq(softcuda_calls("cuMemGetHandleForAddressRange"), 1);
}

/// A transfer releases its registration before it asks for the flush.
TEST(what_the_nic_wrote_is_flushed_after_its_registration_has_ended) {
  ways(1, 0);
  Scene scene({.linger_ns = 0});
  const DeviceMemory memory(8192), other(8192);
  const iovec list{memory.at(0), 8192}, unwritten{other.at(0), 8192};
  (void)scene.key(memory, kWrites);
  (void)scene.key(other);
  ck_assert(scene.registrations.may_be_written(&list, 1));
  ck_assert(!scene.registrations.may_be_written(&unwritten, 1));
  const transport::FlushTarget target = scene.registrations.acquire_flush(list);
  ck_assert_int_eq(target.status, 0);
  ck_assert_ptr_nonnull(target.held);
  scene.registrations.release_flush(target);
  ck_assert_int_eq(softcuda_control("free waits"), 0);
}

/// The registration may end between the two questions.
TEST(what_the_gpu_orders_needs_no_flush_after_its_registration_has_ended) {
  ways(1, 0);
  Scene scene({.linger_ns = 0});
  ck_assert_int_eq(softcuda_control("ordering 100"), 0);
  const DeviceMemory memory(8192);
  const iovec list{memory.at(0), 8192};
  (void)scene.key(memory, kWrites);
  const transport::FlushTarget target = scene.registrations.acquire_flush(list);
  ck_assert_int_eq(target.status, 0);
  ck_assert_ptr_null(target.held);
  ck_assert(scene.registrations.may_be_written(&list, 1));
}

/// CUDA may fail at any time. Writes of the NIC are flushed nevertheless, whether their
/// registration lives or has ended.
TEST(what_the_nic_wrote_is_flushed_though_cuda_can_not_name_it, 2) {
  ways(1, 0);
  Scene scene({.linger_ns = 0});
  const DeviceMemory memory(8192), other(8192);
  const iovec list{memory.at(100), 8092}, unwritten{other.at(0), 8192};
  (void)scene.key(other);
  const Registration held = scene.acquire(memory, 0, kWrites);
  if (_i) scene.registrations.release(held);
  ck_assert_int_eq(softcuda_control("fail cuPointerGetAttribute error=700 times=1000"), 0);
  ck_assert(!scene.registrations.may_be_written(&unwritten, 1));
  ck_assert(scene.registrations.may_be_written(&list, 1));
  const transport::FlushTarget target = scene.registrations.acquire_flush(list);
  ck_assert_int_eq(target.status, 0);
  ck_assert_ptr_nonnull(target.held);
  scene.registrations.release_flush(target);
  ck_assert_int_eq(scene.registrations.acquire_flush(unwritten).status, -FI_EIO);
  ck_assert_int_eq(softcuda_control("clear"), 0);
  if (!_i) scene.registrations.release(held);
}

/// The processor must not touch device memory after CUDA has failed, and host memory stays usable.
TEST(no_processor_copies_what_cuda_can_not_tell) {
  Scene scene;
  const DeviceMemory memory(8192);
  char bytes[8] = {};
  const iovec device{memory.at(0), 8192}, host{bytes, sizeof(bytes)};
  Registration made;
  ck_assert_int_eq(softcuda_control("fail cuPointerGetAttribute error=719 times=1000"), 0);
  ck_assert(!scene.registrations.copies(&device, 1) && scene.registrations.copies(&host, 1));
  ck_assert_int_eq(scene.registrations.acquire(device.iov_base, 8192, kReads, made),
                   -FI_EOPNOTSUPP);
  ck_assert_int_eq(scene.host_uses, 0);
  ck_assert_int_eq(scene.registrations.acquire(bytes, sizeof(bytes), kReads, made), 0);
  ck_assert_int_eq(scene.host_uses, 1);
  scene.registrations.release(made);
  ck_assert_int_eq(softcuda_control("clear"), 0);
}

/// A list with other memory may need copies by the processor.
TEST(only_lists_of_device_memory_are_direct, 2) {
  Scene scene;
  const DeviceMemory memory(8192);
  char bytes[8];
  const iovec list[] = {{memory.at(0), 100}, {memory.at(200), 100}, {bytes, 8}};
  ck_assert(scene.registrations.can_share(list, 2, Access::remote_write));
  ck_assert(!scene.registrations.can_share(list, 3, Access::remote_write));
  transport::RemoteKey nonsense;
  ck_assert(!scene.registrations.can_move(list, 2, nonsense, true));
  transport::verbs::RemoteMemory named;
  named.bounced = true;
  named.length = 200;
  transport::RemoteKey remote_key;
  encode(named, remote_key);
  ck_assert(!scene.registrations.can_move(list, 2, remote_key, _i));
  named.bounced = false;
  named.count = 1;
  named.pieces[0] = {4096, 200, 1};
  encode(named, remote_key);
  ck_assert(scene.registrations.can_move(list, 2, remote_key, _i));
}

/// The adapter's writes have to be flushed, unless the GPU orders them. The flush needs a second
/// registration, for reading, which may fail.
TEST(what_could_not_be_flushed_is_not_written_by_the_adapter, 2) {
  setenv("SOFTERDMA_MAX_MR", "1", 1);
  ways(1, 0);
  Scene scene(0);
  const bool ordered = _i;
  if (ordered) ck_assert_int_eq(softcuda_control("ordering 100"), 0);
  const DeviceMemory memory(8192);
  const iovec list{memory.at(0), 8192};
  ck_assert(scene.registrations.can_share(&list, 1, Access::remote_write) == ordered);
  if (!ordered) return;
  const Registration shared = scene.acquire(memory, 0, kWrites);
  ck_assert(scene.registrations.may_be_written(&list, 1));
  ck_assert_int_eq(scene.registrations.acquire_flush(list).status, 0);
  scene.registrations.release(shared);
}

/// The child destroys its copy of the endpoint while another thread of the parent has the lock:
/// that thread logs a refusal, for which it needs the log's mutex. If the thread is late, the child
/// finds the lock free.
TEST(forked_child_waits_for_no_lock_of_its_parent) {
  ways(1, 0);
  Scene scene({.linger_ns = 0});
  const DeviceMemory memory(8192);
  DevicePointer managed = 0;
  ck_assert_int_eq(cuMemAllocManaged(&managed, 8192, 1), 0);
  const Registration held = scene.acquire(memory, 0, kWrites);
  const transport::FlushTarget target = scene.registrations.acquire_flush({memory.at(0), 8192});
  ck_assert_ptr_nonnull(target.held);
  std::unique_lock log(test::g_log_mutex);
  std::thread other([&] {
    Registration refused;
    (void)scene.registrations.acquire(reinterpret_cast<void*>(managed), 8192, kReads, refused);
  });
  usleep(50'000);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    scene.registrations.release_flush(target);
    scene.registrations.release(held);
    _exit(0);
  }
  log.unlock();
  other.join();
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  scene.registrations.release_flush(target);
  scene.registrations.release(held);
  ck_assert_int_eq(cuMemFree_v2(managed), 0);
}

/// If host memory is registered for each use, sharing of any memory waits for the link.
TEST(what_host_memory_costs_is_the_other_caches_to_say) {
  Scene scene;
  ck_assert_str_eq(scene.registrations.registers_each_time(), "a reason");
  transport::verbs::KnownMemory known(*scene.device, *hmem::Cuda::get(), scene.registrations,
                                      transport::verbs::FlushPolicy::automatic, {});
  ck_assert_str_eq(known.registers_each_time(), "a reason");
  const DeviceMemory memory(64);
  char byte = 0;
  const iovec both[] = {{&byte, 1}, {memory.at(0), 64}};
  ck_assert(!scene.registrations.should_register(both, 1) && !known.should_register(both, 1));
  ck_assert(scene.registrations.should_register(both, 2) && known.should_register(both, 2));
}

/// The last user may be the application, a transfer or a flush. The end of the two registrations
/// takes two commands of the firmware, while other threads find out what their memory is.
TEST(other_threads_find_their_memory_while_memory_is_deregistered, 3) {
  ways(0, 1);
  Scene scene;
  transport::verbs::KnownMemory known(*scene.device, *hmem::Cuda::get(), scene.registrations,
                                      transport::verbs::FlushPolicy::always, {});
  const DeviceMemory memory(8192), other(8192);
  const auto stays = known.keep({other.at(0), 8192}, nullptr);
  auto kept = known.keep({memory.at(0), 8192}, nullptr);
  Registration held;
  transport::FlushTarget target;
  if (_i == 1) ck_assert_int_eq(known.acquire(memory.at(0), 8192, kWrites, held), 0);
  if (_i == 2) target = known.acquire_flush({memory.at(0), 8192});
  ck_assert(_i != 2 || target.held);
  int asked = 0;
  g_deregistering = [&] {
    std::thread([&] {
      ck_assert(known.is_device(other.at(0)));
      ++asked;
    }).join();
  };
  kept.reset();
  if (_i > 0) ck_assert_int_eq(asked, 0);
  if (_i == 1) known.release(held);
  if (_i == 2) known.release_flush(target);
  ck_assert_int_eq(asked, 2);
  g_deregistering = nullptr;
}
