// Tests device memory of one process in another one, on the simulated driver.
#include "hmem/cuda_ipc.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "softcuda/device_memory.h"
#include "softcuda/open_capture.h"

using erdma::hmem::Cuda;
using erdma::hmem::IpcHandle;
using erdma::test::DeviceMemory;
using erdma::test::OpenCapture;
using namespace erdma::hmem::cuda_api;

namespace {

Cuda& cuda() {
  Cuda* const driver = Cuda::get();
  ck_assert_ptr_nonnull(driver);
  return *driver;
}

struct Shared {
  IpcHandle handle{};
  uint64_t offset = 0;
};

Shared share(const void* pointer) {
  Shared made;
  ck_assert_int_eq(cuda().ipc().share(pointer, made.handle, made.offset), 0);
  return made;
}

/// Another process, which allocates, fills, shares and frees memory on command.
class Owner {
 public:
  Owner() {
    ck_assert_int_eq(pipe(x_to) | pipe(x_from), 0);
    x_pid = fork();
    if (x_pid == 0) run();
    close(x_to[0]);
    close(x_from[1]);
  }
  ~Owner() {
    close(x_to[1]);
    close(x_from[0]);
    int status = -1;
    ck_assert_int_eq(waitpid(x_pid, &status, 0), x_pid);
    ck_assert_int_eq(status, 0);
  }
  /// Shares the last 100 of 1000 bytes of this value. Frees the memory that it shared before.
  Shared memory_of(char fill) {
    Shared made;
    ck_assert_int_eq(write(x_to[1], &fill, 1), 1);
    ck_assert_int_eq(read(x_from[0], &made, sizeof(made)), sizeof(made));
    return made;
  }

 private:
  [[noreturn]] void run() {
    close(x_to[1]);
    char fill = 0;
    while (read(x_to[0], &fill, 1) == 1) {
      x_memory.reset();
      x_memory.reset(new DeviceMemory(std::vector<char>(1000, fill)));
      const Shared made = share(x_memory->at(900));
      if (write(x_from[1], &made, sizeof(made)) != sizeof(made)) _exit(1);
    }
    _exit(0);
  }
  int x_to[2], x_from[2];
  pid_t x_pid;
  std::unique_ptr<DeviceMemory> x_memory;
};

std::vector<char> content(const erdma::hmem::IpcMemory& memory, uint64_t offset, size_t length) {
  std::vector<char> bytes(length);
  ck_assert_int_eq(
      cuda().copy(bytes.data(), reinterpret_cast<const void*>(memory.base + offset), length), 0);
  return bytes;
}

}  // namespace

TEST(memory_of_another_process_is_read_where_it_is) {
  Owner owner;
  const DeviceMemory here(8);
  const Shared theirs = owner.memory_of('a');
  ck_assert_uint_eq(theirs.offset, 900);
  auto opened = cuda().ipc().open(theirs.handle, here.at(0));
  ck_assert_int_eq(opened.error(), 0);
  ck_assert_uint_ge(opened->size, 1000);
  ck_assert(content(*opened, theirs.offset, 100) == std::vector<char>(100, 'a'));
  cuda().ipc().close(theirs.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 1);
}

TEST(memory_is_shared_opened_and_closed_beside_a_capture) {
  Owner owner;
  const DeviceMemory here(100);
  const Shared theirs = owner.memory_of('a');
  OpenCapture open;
  share(here.at(0));
  ck_assert(bool(cuda().ipc().open(theirs.handle, here.at(0))));
  cuda().ipc().close(theirs.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 1);
  ck_assert_int_eq(open.end(), kSuccess);
}

TEST(memory_is_opened_once_and_closed_with_its_last_user) {
  Owner owner;
  const DeviceMemory here(8);
  const Shared theirs = owner.memory_of('a');
  auto one = cuda().ipc().open(theirs.handle, here.at(0)),
       two = cuda().ipc().open(theirs.handle, nullptr);
  ck_assert_uint_eq(one->base, two->base);
  ck_assert_uint_eq(softcuda_calls("cuIpcOpenMemHandle"), 1);
  cuda().ipc().close(theirs.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 0);
  cuda().ipc().close(theirs.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 1);
  cuda().ipc().close(theirs.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 1);
}

/// Both allocations have the same handle, for which the driver would still return the old mapping.
TEST(reallocated_memory_is_not_taken_for_what_was_there) {
  Owner owner;
  const DeviceMemory here(8);
  const Shared old = owner.memory_of('a');
  ck_assert(bool(cuda().ipc().open(old.handle, here.at(0))));
  const Shared anew = owner.memory_of('b');
  ck_assert(anew.handle.same_name(old.handle));
  ck_assert(!(anew.handle == old.handle));
  ck_assert_int_eq(cuda().ipc().open(anew.handle, here.at(0)).error(), -FI_EOPNOTSUPP);
  cuda().ipc().close(old.handle);
  auto opened = cuda().ipc().open(anew.handle, here.at(0));
  ck_assert_int_eq(opened.error(), 0);
  ck_assert(content(*opened, anew.offset, 100) == std::vector<char>(100, 'b'));
  cuda().ipc().close(anew.handle);
}

/// The mapping ends with the receiver's context. Its address is free, or that of other memory.
TEST(mapping_that_ended_with_its_context_is_opened_again, 2) {
  Owner owner;
  auto here = std::make_unique<DeviceMemory>(10'000);
  const Shared theirs = owner.memory_of('a');
  auto opened = cuda().ipc().open(theirs.handle, here->at(0));
  ck_assert_int_eq(opened.error(), 0);
  const uintptr_t before = opened->base;
  ck_assert_int_eq(cuDevicePrimaryCtxRelease_v2(0), 0);
  here = std::make_unique<DeviceMemory>(std::vector<char>(_i ? 1000 : 10'000, 'b'));
  if (_i) ck_assert_uint_eq(here->pointer(), before);
  for (int users = 0; users < 2; ++users) {
    opened = cuda().ipc().open(theirs.handle, here->at(0));
    ck_assert_int_eq(opened.error(), 0);
    ck_assert(content(*opened, theirs.offset, 100) == std::vector<char>(100, 'a'));
  }
  ck_assert_uint_eq(softcuda_calls("cuIpcOpenMemHandle"), 2);
  // The user of the former mapping closes it too, and does not end the use of the later ones.
  for (int users = 0; users < 3; ++users) {
    ck_assert(content(*opened, theirs.offset, 100) == std::vector<char>(100, 'a'));
    cuda().ipc().close(theirs.handle);
  }
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 1);
}

/// Other memory has the address meanwhile, in a context that has the handle of the former one.
TEST(mapping_that_ended_with_its_context_is_not_closed) {
  Owner owner;
  auto here = std::make_unique<DeviceMemory>(10'000);
  const Shared old = owner.memory_of('a');
  ck_assert(bool(cuda().ipc().open(old.handle, here->at(0))));
  ck_assert_int_eq(cuDevicePrimaryCtxRelease_v2(0), 0);
  here = std::make_unique<DeviceMemory>(10'000);
  const Shared anew = owner.memory_of('b');
  ck_assert(anew.handle.same_name(old.handle));
  auto opened = cuda().ipc().open(anew.handle, here->at(0));
  ck_assert_int_eq(opened.error(), 0);
  cuda().ipc().close(old.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 0);
  ck_assert(content(*opened, anew.offset, 100) == std::vector<char>(100, 'b'));
  cuda().ipc().close(anew.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 1);
}

/// The peer's copy does not wait for the null stream of this process.
TEST(shared_memory_has_what_was_written_before) {
  const DeviceMemory memory(1000);
  ck_assert_int_eq(cuMemsetD8_v2(memory.pointer(), 'x', 1000), 0);
  share(memory.at(10));
  ck_assert(memory.bytes() == std::vector<char>(1000, 'x'));
}

TEST(memory_of_this_process_is_where_it_is) {
  const DeviceMemory memory(1000);
  const Shared ours = share(memory.at(10));
  auto opened = cuda().ipc().open(ours.handle, nullptr);
  ck_assert_int_eq(opened.error(), 0);
  ck_assert_uint_eq(opened->base + ours.offset, memory.pointer() + 10);
  cuda().ipc().close(ours.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcOpenMemHandle"), 0);
  ck_assert_uint_eq(softcuda_calls("cuIpcCloseMemHandle"), 0);
}

/// The driver does not open a handle in the process that made it.
TEST(memory_of_this_process_stays_open_until_it_is_closed) {
  const DeviceMemory memory(1000);
  const Shared ours = share(memory.at(10));
  std::vector<std::unique_ptr<DeviceMemory>> others;
  const auto share_others = [&] {
    for (int i = 0; i < 100; ++i) {
      others.push_back(std::make_unique<DeviceMemory>(8));
      share(others.back()->at(0));
    }
  };
  ck_assert(bool(cuda().ipc().open(ours.handle, nullptr)));
  share_others();
  auto opened = cuda().ipc().open(ours.handle, nullptr);
  ck_assert_int_eq(opened.error(), 0);
  ck_assert_uint_eq(opened->base, memory.pointer());
  for (int users = 0; users < 3; ++users) cuda().ipc().close(ours.handle);
  ck_assert_uint_eq(softcuda_calls("cuIpcOpenMemHandle"), 0);
  share_others();
  ck_assert_int_eq(cuda().ipc().open(ours.handle, nullptr).error(), -FI_EOPNOTSUPP);
}

TEST(more_memory_of_this_process_may_be_open_than_is_kept) {
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  std::vector<Shared> ours;
  for (int i = 0; i < 100; ++i) {
    memory.push_back(std::make_unique<DeviceMemory>(8));
    ours.push_back(share(memory.back()->at(0)));
    ck_assert(bool(cuda().ipc().open(ours.back().handle, nullptr)));
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    ck_assert_uint_eq(cuda().ipc().open(ours[i].handle, nullptr)->base, memory[i]->pointer());
    for (int users = 0; users < 2; ++users) cuda().ipc().close(ours[i].handle);
  }
}

TEST(handle_is_asked_for_once_per_allocation) {
  for (int i = 0; i < 3; ++i) {
    const DeviceMemory memory(1000);
    const Shared one = share(memory.at(10)), two = share(memory.at(999));
    ck_assert(one.handle == two.handle);
    ck_assert_uint_eq(two.offset, 999);
    ck_assert_uint_eq(softcuda_calls("cuIpcGetMemHandle"), unsigned(i) + 1);
  }
}

TEST(what_can_not_be_shared_is_said_once_and_not_tried_again) {
  const DeviceMemory memory(1000), other(1000);
  const char on_host[8] = {};
  IpcHandle handle{};
  uint64_t offset = 0;
  ck_assert_int_eq(cuda().ipc().share(on_host, handle, offset), -FI_EOPNOTSUPP);
  ck_assert_int_eq(softcuda_control("fail cuIpcGetMemHandle error=1 times=100"), 0);
  for (int i = 0; i < 3; ++i)
    ck_assert_int_eq(cuda().ipc().share(memory.at(0), handle, offset), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(softcuda_calls("cuIpcGetMemHandle"), 1);
  ck_assert_int_eq(cuda().ipc().share(other.at(0), handle, offset), -FI_EOPNOTSUPP);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "cudaMalloc"));
}

TEST(what_can_not_be_opened_is_said_once) {
  Owner owner;
  const DeviceMemory here(8);
  const Shared theirs = owner.memory_of('a');
  ck_assert_int_eq(softcuda_control("fail cuIpcOpenMemHandle error=205 times=2"), 0);
  for (int i = 0; i < 2; ++i)
    ck_assert_int_eq(cuda().ipc().open(theirs.handle, here.at(0)).error(), -FI_EOPNOTSUPP);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "CUDA error 205"));
  ck_assert(bool(cuda().ipc().open(theirs.handle, here.at(0))));
  cuda().ipc().close(theirs.handle);
}

/// The thread has no context, and the provider makes none.
TEST(thread_without_a_context_opens_nothing_for_host_memory) {
  Owner owner;
  ck_assert_int_eq(cuInit(0), 0);
  const Shared theirs = owner.memory_of('a');
  ck_assert_int_eq(cuda().ipc().open(theirs.handle, nullptr).error(), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(softcuda_calls("cuIpcOpenMemHandle"), 0);
}

TEST(forked_child_closes_nothing) {
  Owner owner;
  const DeviceMemory here(8);
  const Shared theirs = owner.memory_of('a');
  Cuda& driver = cuda();
  ck_assert(bool(driver.ipc().open(theirs.handle, here.at(0))));
  const pid_t pid = fork();
  if (pid == 0) {
    const unsigned long before = softcuda_calls(nullptr);
    driver.ipc().close(theirs.handle);
    const bool refused = !driver.ipc().open(theirs.handle, here.at(0));
    _exit(refused && softcuda_calls(nullptr) == before ? 0 : 1);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  cuda().ipc().close(theirs.handle);
}
