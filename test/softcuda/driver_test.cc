// Tests the properties of the real CUDA driver on which the provider's tests rely.
#include "softcuda/driver.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "libcheck.h"

using namespace erdma::hmem::cuda_api;

namespace {

void begin() {
  ck_assert_int_eq(cuInit(0), kSuccess);
  Context context = nullptr;
  ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, 0), kSuccess);
  ck_assert_int_eq(cuCtxSetCurrent(context), kSuccess);
}

DevicePointer allocate(size_t bytes) {
  DevicePointer made = 0;
  ck_assert_int_eq(cuMemAlloc_v2(&made, bytes), kSuccess);
  return made;
}

std::vector<unsigned char> numbers(size_t length) {
  std::vector<unsigned char> made(length);
  std::iota(made.begin(), made.end(), static_cast<unsigned char>(1));
  return made;
}

std::vector<unsigned char> content(DevicePointer from, size_t length) {
  std::vector<unsigned char> bytes(length);
  ck_assert_int_eq(cuMemcpyDtoH_v2(bytes.data(), from, length), kSuccess);
  return bytes;
}

template <typename T>
T attribute(int which, DevicePointer pointer) {
  T value{};
  ck_assert_int_eq(cuPointerGetAttribute(&value, which, pointer), kSuccess);
  return value;
}

Context context_of(DevicePointer pointer) {
  return attribute<Context>(kPointerContext, pointer);
}

/// Runs `body` in a child and returns its exit status.
template <typename F>
int child(F body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

// A test exits after its last assertion without freeing its resources.
SUITE(.counted = false);

TEST(processor_faults_where_it_touches_device_memory) {
  begin();
  const DevicePointer memory = allocate(64);
  signal(SIGSEGV, SIG_DFL);
  volatile auto* pointer = reinterpret_cast<volatile char*>(memory);
  ck_assert_int_eq(child([&] { return *pointer; }), -SIGSEGV);
}

TEST(copies_reach_every_byte) {
  begin();
  const auto bytes = numbers(10'000);
  const DevicePointer one = allocate(bytes.size()), other = allocate(bytes.size());
  ck_assert_int_eq(cuMemcpyHtoD_v2(one, bytes.data(), bytes.size()), kSuccess);
  ck_assert_int_eq(cuMemcpyDtoD_v2(other, one, bytes.size()), kSuccess);
  ck_assert(content(other, bytes.size()) == bytes);
  std::vector<unsigned char> back(100);
  ck_assert_int_eq(cuMemcpy(reinterpret_cast<uintptr_t>(back.data()), other + 7, 100), kSuccess);
  ck_assert(std::equal(back.begin(), back.end(), bytes.begin() + 7));
  ck_assert_int_eq(cuMemcpyDtoH_v2(back.data(), other + bytes.size() - 50, 51), kInvalidValue);
}

TEST(asynchronous_copy_is_not_done_before_it_is_waited_for) {
  begin();
  const auto bytes = numbers(32);
  const DevicePointer memory = allocate(32);
  ck_assert_int_eq(cuMemsetD8_v2(memory, 0, 32), kSuccess);
  Stream stream = nullptr;
  ck_assert_int_eq(cuStreamCreate(&stream, kStreamNonBlocking), kSuccess);
  ck_assert_int_eq(cuMemcpyHtoDAsync_v2(memory, bytes.data(), 32, stream), kSuccess);
  ck_assert(content(memory, 32) == std::vector<unsigned char>(32));
  ck_assert_int_eq(cuStreamQuery(stream), kNotReady);
  ck_assert(content(memory, 32) == std::vector<unsigned char>(32));
  ck_assert_int_eq(cuStreamQuery(stream), kSuccess);
  ck_assert(content(memory, 32) == bytes);

  Event event = nullptr;
  ck_assert_int_eq(cuEventCreate(&event, kEventDisableTiming), kSuccess);
  const DevicePointer other = allocate(32);
  ck_assert_int_eq(cuMemcpyDtoDAsync_v2(other, memory, 32, stream), kSuccess);
  ck_assert_int_eq(cuEventRecord(event, stream), kSuccess);
  ck_assert_int_eq(cuEventQuery(event), kNotReady);
  ck_assert_int_eq(cuEventQuery(event), kSuccess);
  ck_assert(content(other, 32) == bytes);
  ck_assert_int_eq(cuEventDestroy_v2(event), kSuccess);
  ck_assert_int_eq(cuStreamDestroy_v2(stream), kSuccess);
  ck_assert_int_eq(cuStreamDestroy_v2(stream), kInvalidHandle);
  ck_assert_int_eq(cuMemcpyDtoDAsync_v2(other, memory, 32, stream), kInvalidHandle);
}

/// CUDA calls these operations synchronous. The attribute makes them so.
TEST(fill_and_copy_within_devices_end_later_unless_their_memory_says_otherwise) {
  begin();
  const DevicePointer from = allocate(32), to = allocate(32), other = allocate(32);
  const auto seen = [](DevicePointer memory) {
    return *static_cast<char*>(softcuda_alias(reinterpret_cast<void*>(memory), 1));
  };
  const unsigned on = 1;
  ck_assert_int_eq(cuMemsetD8_v2(from, 'a', 32), kSuccess);
  ck_assert_int_eq(cuMemcpyDtoD_v2(to, from, 32), kSuccess);
  ck_assert_int_eq(cuPointerSetAttribute(&on, kPointerSyncMemops, other), kSuccess);
  ck_assert(seen(from) == 0 && seen(to) == 0);
  ck_assert_int_eq(cuPointerSetAttribute(&on, kPointerSyncMemops, to), kSuccess);
  ck_assert(seen(from) == 'a' && seen(to) == 'a');
  ck_assert_int_eq(cuMemsetD8_v2(from, 'b', 32), kSuccess);
  ck_assert_int_eq(seen(from), 'a');
  ck_assert_int_eq(cuMemFree_v2(from), kSuccess);
  ck_assert_int_eq(cuMemsetD8_v2(to, 'c', 32), kSuccess);
  ck_assert_int_eq(seen(to), 'c');
}

TEST(calls_need_cuInit_and_a_context_of_the_thread) {
  DevicePointer made = 0;
  unsigned type = 0;
  ck_assert_int_eq(cuPointerGetAttribute(&type, kPointerMemoryType, 1), kNotInitialized);
  begin();
  const DevicePointer memory = allocate(8);
  std::thread([&] {
    char byte = 0;
    ck_assert_int_eq(cuMemAlloc_v2(&made, 8), kInvalidContext);
    ck_assert_int_eq(cuMemcpyDtoH_v2(&byte, memory, 1), kInvalidContext);
    ck_assert_uint_eq(attribute<unsigned>(kPointerMemoryType, memory), kMemoryDevice);
    ck_assert_int_eq(cuCtxPushCurrent_v2(attribute<Context>(kPointerContext, memory)), kSuccess);
    ck_assert_int_eq(cuMemcpyDtoH_v2(&byte, memory, 1), kSuccess);
    ck_assert_int_eq(cuCtxPopCurrent_v2(nullptr), kSuccess);
  }).join();
}

TEST(a_forked_child_can_not_use_the_driver) {
  begin();
  const DevicePointer memory = allocate(8);
  unsigned type = 0;
  ck_assert_int_eq(child([&] { return cuPointerGetAttribute(&type, kPointerMemoryType, memory); }),
                   kNotInitialized);
  ck_assert_int_eq(child([] { return cuInit(0); }), kNotInitialized);
}

TEST(pointers_are_known_up_to_the_end_of_their_allocation) {
  begin();
  int on_host = 0;
  unsigned type = 0;
  ck_assert_int_eq(cuPointerGetAttribute(&type, kPointerMemoryType, uintptr_t(&on_host)),
                   kInvalidValue);
  const DevicePointer memory = allocate(1000);
  ck_assert_uint_eq(attribute<unsigned>(kPointerMemoryType, memory + 999), kMemoryDevice);
  ck_assert_int_eq(cuPointerGetAttribute(&type, kPointerMemoryType, memory + 1000), kInvalidValue);
  DevicePointer base = 0;
  size_t size = 0;
  ck_assert_int_eq(cuMemGetAddressRange_v2(&base, &size, memory + 999), kSuccess);
  ck_assert_uint_eq(base, memory);
  ck_assert_uint_eq(size, 1000);

  int which[] = {kPointerMemoryType, kPointerBufferId};
  unsigned long long id = 1;
  void* out[] = {&type, &id};
  ck_assert_int_eq(cuPointerGetAttributes(2, which, out, uintptr_t(&on_host)), kSuccess);
  ck_assert_uint_eq(type, 0);
  ck_assert_uint_eq(id, 0);
}

TEST(address_that_comes_back_has_another_buffer_id) {
  begin();
  const DevicePointer first = allocate(4096);
  const auto id = attribute<unsigned long long>(kPointerBufferId, first);
  ck_assert_int_eq(cuMemFree_v2(first), kSuccess);
  ck_assert_int_eq(cuMemFree_v2(first), kInvalidValue);
  const DevicePointer second = allocate(4096);
  ck_assert_uint_eq(second, first);
  ck_assert_uint_ne(attribute<unsigned long long>(kPointerBufferId, second), id);
}

TEST(memory_is_shared_with_another_process_by_handle) {
  const auto bytes = numbers(5000);
  int to_child[2], to_parent[2];
  ck_assert_int_eq(pipe(to_child), 0);
  ck_assert_int_eq(pipe(to_parent), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    begin();
    IpcMemHandle handle;
    char byte = 0;
    DevicePointer theirs = 0, again = 0;
    if (read(to_child[0], &handle, sizeof(handle)) != sizeof(handle)) _exit(1);
    if (cuIpcOpenMemHandle_v2(&theirs, handle, kIpcLazyPeerAccess)) _exit(2);
    if (cuIpcOpenMemHandle_v2(&again, handle, kIpcLazyPeerAccess) || again != theirs) _exit(3);
    if (content(theirs, bytes.size()) != bytes) _exit(4);
    if (cuMemsetD8_v2(theirs, 9, 10)) _exit(5);
    if (cuIpcCloseMemHandle(theirs) || content(theirs, 1)[0] != 9) _exit(6);
    if (cuIpcCloseMemHandle(theirs) || cuIpcCloseMemHandle(theirs) != kInvalidValue) _exit(7);
    if (write(to_parent[1], &byte, 1) != 1 || read(to_child[0], &byte, 1) != 1) _exit(8);
    if (cuIpcOpenMemHandle_v2(&theirs, handle, kIpcLazyPeerAccess) != kInvalidValue) _exit(9);
    _exit(0);
  }
  begin();
  const DevicePointer memory = allocate(bytes.size());
  ck_assert_int_eq(cuMemcpyHtoD_v2(memory, bytes.data(), bytes.size()), kSuccess);
  IpcMemHandle handle;
  ck_assert_int_eq(cuIpcGetMemHandle(&handle, memory + 100), kSuccess);
  DevicePointer ours = 0;
  ck_assert_int_eq(cuIpcOpenMemHandle_v2(&ours, handle, kIpcLazyPeerAccess), kInvalidContext);
  ck_assert_int_eq(write(to_child[1], &handle, sizeof(handle)), sizeof(handle));
  char byte = 0;
  ck_assert_int_eq(read(to_parent[0], &byte, 1), 1);
  ck_assert_int_eq(content(memory, 10)[9], 9);
  ck_assert_int_eq(cuMemFree_v2(memory), kSuccess);
  ck_assert_int_eq(write(to_child[1], &byte, 1), 1);
  int status = 0;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}

/// An application that keeps handles open must compare buffer ids.
TEST(handle_may_come_back_and_an_open_one_stays_what_it_was) {
  int to_child[2], to_parent[2];
  ck_assert_int_eq(pipe(to_child), 0);
  ck_assert_int_eq(pipe(to_parent), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    begin();
    IpcMemHandle handle, later;
    char byte = 0;
    DevicePointer old = 0, theirs = 0;
    if (read(to_child[0], &handle, sizeof(handle)) != sizeof(handle)) _exit(1);
    if (cuIpcOpenMemHandle_v2(&old, handle, kIpcLazyPeerAccess)) _exit(2);
    if (write(to_parent[1], &byte, 1) != 1) _exit(3);
    if (read(to_child[0], &later, sizeof(later)) != sizeof(later)) _exit(4);
    if (memcmp(&handle, &later, sizeof(handle)) != 0) _exit(5);
    if (cuIpcOpenMemHandle_v2(&theirs, later, kIpcLazyPeerAccess)) _exit(6);
    if (theirs != old || content(theirs, 1)[0] != 1) _exit(7);
    if (cuIpcCloseMemHandle(old) || cuIpcCloseMemHandle(old)) _exit(8);
    if (cuIpcOpenMemHandle_v2(&theirs, later, kIpcLazyPeerAccess)) _exit(9);
    _exit(content(theirs, 1)[0] == 2 ? 0 : 10);
  }
  begin();
  IpcMemHandle handle;
  char byte = 0;
  for (unsigned char fill = 1; fill <= 2; ++fill) {
    const DevicePointer memory = allocate(100);
    ck_assert_int_eq(cuMemsetD8_v2(memory, fill, 100), kSuccess);
    ck_assert_int_eq(cuStreamSynchronize(nullptr), kSuccess);
    ck_assert_int_eq(cuIpcGetMemHandle(&handle, memory), kSuccess);
    ck_assert_int_eq(write(to_child[1], &handle, sizeof(handle)), sizeof(handle));
    if (fill == 2) break;
    ck_assert_int_eq(read(to_parent[0], &byte, 1), 1);
    ck_assert_int_eq(cuMemFree_v2(memory), kSuccess);
  }
  int status = 0;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}

/// Maps two pieces at consecutive addresses.
TEST(mapped_memory_is_of_no_context_and_readable_where_allowed) {
  begin();
  constexpr size_t kPiece = size_t(2) << 20;
  const MemAllocationProperties wanted{kMemoryPinned, kHandlePosixFd, {kLocationDevice, 0}, {}, {}};
  DevicePointer at = 0;
  PhysicalMemory pieces[2], retained = 0;
  ck_assert_int_eq(cuMemAddressReserve(&at, 2 * kPiece, 0, 0, 0), kSuccess);
  for (int i = 0; i < 2; ++i) {
    ck_assert_int_eq(cuMemCreate(&pieces[i], kPiece, &wanted, 0), kSuccess);
    ck_assert_int_eq(cuMemMap(at + size_t(i) * kPiece, kPiece, 0, pieces[i], 0), kSuccess);
  }
  ck_assert_ptr_null(attribute<Context>(kPointerContext, at));
  ck_assert_int_eq(cuMemsetD8_v2(at, 7, 1), kInvalidValue);  // the device has no access yet
  const MemAccess access{{kLocationDevice, 0}, kAccessReadWrite};
  ck_assert_int_eq(cuMemSetAccess(at, 2 * kPiece, &access, 1), kSuccess);
  const auto bytes = numbers(10'000);
  const DevicePointer across = at + kPiece - 5'000;
  ck_assert_int_eq(cuMemcpyHtoD_v2(across, bytes.data(), bytes.size()), kSuccess);
  ck_assert(content(across, bytes.size()) == bytes);
  ck_assert_int_eq(cuMemcpyHtoD_v2(at + 2 * kPiece - 1, bytes.data(), 2), kInvalidValue);

  DevicePointer base = 0;
  size_t size = 0;
  ck_assert_int_eq(cuMemGetAddressRange_v2(&base, &size, across + 6'000), kSuccess);
  ck_assert_uint_eq(base, at + kPiece);
  ck_assert_uint_eq(size, kPiece);
  ck_assert_int_eq(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(base)), kSuccess);
  ck_assert_uint_eq(retained, pieces[1]);
  IpcMemHandle handle;
  ck_assert_int_eq(cuIpcGetMemHandle(&handle, at), kInvalidValue);
  ck_assert_int_eq(cuMemUnmap(at, kPiece), kSuccess);
  ck_assert_int_eq(cuMemAddressFree(at, 2 * kPiece), kInvalidValue);
  ck_assert_int_eq(cuMemUnmap(at + kPiece, kPiece), kSuccess);
  ck_assert_int_eq(cuMemAddressFree(at, 2 * kPiece), kSuccess);
  for (const PhysicalMemory one : {pieces[0], pieces[1], retained})
    ck_assert_int_eq(cuMemRelease(one), kSuccess);
  ck_assert_int_eq(cuMemRelease(retained), kInvalidValue);
}

TEST(descriptor_of_physical_memory_shows_the_same_bytes_elsewhere) {
  begin();
  constexpr size_t kSize = size_t(2) << 20;
  MemAllocationProperties wanted{kMemoryPinned, 0, {kLocationDevice, 0}, {}, {}};
  PhysicalMemory made = 0, other = 0;
  int fd = -1;
  ck_assert_int_eq(cuMemCreate(&made, kSize, &wanted, 0), kSuccess);
  ck_assert_int_eq(cuMemExportToShareableHandle(&fd, made, kHandlePosixFd, 0), kInvalidValue);
  ck_assert_int_eq(cuMemRelease(made), kSuccess);
  wanted.handle_types = kHandlePosixFd;
  ck_assert_int_eq(cuMemCreate(&made, kSize, &wanted, 0), kSuccess);
  ck_assert_int_eq(cuMemExportToShareableHandle(&fd, made, kHandlePosixFd, 0), kSuccess);
  void* const shared = reinterpret_cast<void*>(intptr_t(fd));
  ck_assert_int_eq(cuMemImportFromShareableHandle(&other, shared, kHandlePosixFd), kSuccess);
  close(fd);
  DevicePointer at[2];
  const MemAccess access{{kLocationDevice, 0}, kAccessReadWrite};
  for (int i = 0; i < 2; ++i) {
    ck_assert_int_eq(cuMemAddressReserve(&at[i], kSize, 0, 0, 0), kSuccess);
    ck_assert_int_eq(cuMemMap(at[i], kSize, 0, i ? other : made, 0), kSuccess);
    ck_assert_int_eq(cuMemSetAccess(at[i], kSize, &access, 1), kSuccess);
    ck_assert_int_eq(cuMemRelease(i ? other : made), kSuccess);
  }
  ck_assert_int_eq(cuMemsetD8_v2(at[0] + 100, 7, 1), kSuccess);
  ck_assert_int_eq(content(at[1] + 100, 1)[0], 7);
  void* const null_file = reinterpret_cast<void*>(intptr_t(open("/dev/null", O_RDONLY)));
  ck_assert_int_eq(cuMemImportFromShareableHandle(&other, null_file, kHandlePosixFd), kUnknown);
}

TEST(dmabuf_shows_the_bytes_of_the_device) {
  begin();
  const DevicePointer memory = allocate(8192);
  ck_assert_int_eq(cuMemsetD8_v2(memory + 5000, 3, 1), kSuccess);
  ck_assert_int_eq(cuStreamSynchronize(nullptr), kSuccess);
  int fd = -1;
  const auto get = [&](DevicePointer from, size_t size) {
    return cuMemGetHandleForAddressRange(&fd, from, size, kRangeHandleDmabufFd, 0);
  };
  ck_assert_int_eq(get(memory, 8192), kSuccess);
  void* mapped = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0);
  ck_assert_ptr_ne(mapped, MAP_FAILED);
  ck_assert_int_eq(static_cast<char*>(mapped)[5000], 3);
  munmap(mapped, 8192);
  close(fd);
  ck_assert_int_eq(get(memory + 8, 4096), kInvalidValue);
  ck_assert_int_eq(get(memory, 100), kInvalidValue);
  ck_assert_int_eq(softcuda_control("dmabuf off"), 0);
  ck_assert_int_eq(get(memory, 8192), kNotSupported);
}

TEST(graph_copies_what_was_captured) {
  begin();
  const auto bytes = numbers(32);
  const DevicePointer from = allocate(32), to = allocate(32);
  Stream stream = nullptr;
  Graph graph = nullptr;
  GraphExec made = nullptr;
  ck_assert_int_eq(cuStreamCreate(&stream, kStreamNonBlocking), kSuccess);
  ck_assert_int_eq(cuMemsetD8_v2(to, 0, 32), kSuccess);
  ck_assert_int_eq(cuStreamBeginCapture_v2(stream, kCaptureGlobal), kSuccess);
  ck_assert_int_eq(cuMemcpyAsync(to, from, 32, stream), kSuccess);
  std::thread([&] {
    ck_assert_int_eq(cuCtxSetCurrent(context_of(from)), kSuccess);
    ck_assert_int_eq(cuStreamEndCapture(stream, &graph), kStreamCaptureWrongThread);
  }).join();
  ck_assert_int_eq(cuStreamEndCapture(stream, &graph), kSuccess);
  ck_assert_int_eq(cuGraphInstantiateWithFlags(&made, graph, 0), kSuccess);
  ck_assert_int_eq(cuMemcpyHtoD_v2(from, bytes.data(), 32), kSuccess);
  ck_assert(content(to, 32) == std::vector<unsigned char>(32));
  ck_assert_int_eq(cuGraphLaunch(made, stream), kSuccess);
  ck_assert_int_eq(cuStreamSynchronize(stream), kSuccess);
  ck_assert(content(to, 32) == bytes);
  ck_assert_int_eq(cuGraphExecDestroy(made), kSuccess);
  ck_assert_int_eq(cuGraphDestroy(graph), kSuccess);
}

/// The modes of the capture and of the thread whose call is unsafe, and whether the call ends the
/// capture. The thread is another one, or that of the capture.
TEST(unsafe_call_fails_and_ends_the_captures_that_forbid_it) {
  begin();
  const DevicePointer memory = allocate(32);
  Stream stream = nullptr;
  Graph graph = nullptr;
  ck_assert_int_eq(cuStreamCreate(&stream, kStreamNonBlocking), kSuccess);
  const struct {
    int capture, thread;
    bool other, forbidden;
  } cases[] = {
      {kCaptureGlobal, kCaptureGlobal, true, true},
      {kCaptureGlobal, kCaptureThreadLocal, true, false},
      {kCaptureGlobal, kCaptureRelaxed, true, false},
      {kCaptureThreadLocal, kCaptureGlobal, true, false},
      {kCaptureRelaxed, kCaptureGlobal, true, false},
      {kCaptureGlobal, kCaptureGlobal, false, true},
      {kCaptureThreadLocal, kCaptureThreadLocal, false, true},
      {kCaptureThreadLocal, kCaptureRelaxed, false, false},
      {kCaptureRelaxed, kCaptureGlobal, false, false},
  };
  for (const auto& [capture, thread, other, forbidden] : cases) {
    ck_assert_int_eq(cuStreamBeginCapture_v2(stream, capture), kSuccess);
    const auto call = [memory, asked = thread, refused = forbidden] {
      char byte = 0;
      int mode = asked;
      ck_assert_int_eq(cuCtxSetCurrent(context_of(memory)), kSuccess);
      ck_assert_int_eq(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
      ck_assert_int_eq(cuMemcpyDtoH_v2(&byte, memory, 1),
                       refused ? kStreamCaptureUnsupported : kSuccess);
      ck_assert_int_eq(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
    };
    if (other)
      std::thread(call).join();
    else
      call();
    ck_assert_int_eq(cuMemcpyAsync(memory, memory, 1, stream),
                     forbidden ? kStreamCaptureInvalidated : kSuccess);
    ck_assert_int_eq(cuStreamEndCapture(stream, &graph),
                     forbidden ? kStreamCaptureInvalidated : kSuccess);
    ck_assert(forbidden == !graph);
    cuGraphDestroy(graph);
  }
}

TEST(calls_are_counted_and_fail_on_demand) {
  begin();
  const unsigned long before = softcuda_calls(nullptr);
  const DevicePointer memory = allocate(8);
  ck_assert_uint_eq(softcuda_calls("cuMemAlloc"), 1);
  ck_assert_uint_eq(softcuda_calls(nullptr), before + 1);
  ck_assert_int_eq(softcuda_control("fail cuMemcpyDtoH error=700 n=2 times=2"), 0);
  char byte = 0;
  const Result expected[] = {kSuccess, kIllegalAddress, kIllegalAddress, kSuccess};
  for (const Result rc : expected) ck_assert_int_eq(cuMemcpyDtoH_v2(&byte, memory, 1), rc);
  ck_assert_int_eq(softcuda_control("fail cuMemAlloc error=2"), 0);
  ck_assert_int_eq(softcuda_control("clear"), 0);
  allocate(8);
  for (const char* nonsense : {"fail cuMemAlloc", "fail", "perhaps", "ipc maybe", "fail x error"})
    ck_assert_int_eq(softcuda_control(nonsense), -1);
}
