// The provider's use of the CUDA driver, on the simulated driver.
#include "hmem/cuda.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "softcuda/device_memory.h"
#include "softcuda/open_capture.h"

using erdma::hmem::Cuda;
using erdma::test::DeviceMemory;
using erdma::test::OpenCapture;
using namespace erdma::hmem::cuda_api;

namespace {

Cuda& cuda() {
  Cuda* const driver = Cuda::get();
  ck_assert_ptr_nonnull(driver);
  return *driver;
}

std::vector<char> numbers(size_t length) {
  std::vector<char> made(length);
  std::iota(made.begin(), made.end(), char(1));
  return made;
}

}  // namespace

TEST(there_is_none_where_the_driver_has_no_device) {
  setenv("SOFTCUDA_DEVICES", "0", 1);
  ck_assert_ptr_null(Cuda::get());
  ck_assert_ptr_null(Cuda::get());
  ck_assert_uint_eq(softcuda_calls("cuInit"), 1);
}

TEST(driver_tells_device_from_host_memory) {
  const DeviceMemory memory(1000);
  const char on_host[8] = {};
  ck_assert(cuda().is_device(memory.at(0)));
  ck_assert(cuda().is_device(memory.at(999)));
  ck_assert(!cuda().is_device(on_host));
  ck_assert(!cuda().is_device(nullptr));
  ck_assert(cuda().covers(memory.at(10), 990));
  ck_assert(!cuda().covers(memory.at(10), 991));
  ck_assert(!cuda().covers(on_host, 1));
  const iovec mixed[] = {{const_cast<char*>(on_host), 8}, {memory.at(0), 8}};
  ck_assert(cuda().any_device(mixed, 2));
  ck_assert(!cuda().any_device(mixed, 1));
  const iovec nothing{memory.at(0), 0};
  ck_assert(!cuda().any_device(&nothing, 1));
}

/// A kernel of the application has failed, for example: CUDA then answers no question. Device
/// memory is what the processor can't read.
TEST(memory_is_told_though_cuda_fails, 3) {
  const char* const errors[] = {"4", "700", "719"};
  const DeviceMemory memory(std::vector<char>(8, '-'));
  char on_host[8] = "1234567", back[8] = {};
  const iovec device{memory.at(0), 8}, host{on_host, 8};
  for (const char* function : {"cuPointerGetAttribute", "cuPointerGetAttributes"}) {
    const std::string line = std::string("fail ") + function + " times=1000 error=" + errors[_i];
    ck_assert_int_eq(softcuda_control(line.c_str()), 0);
  }
  ck_assert(cuda().is_device(memory.at(3)) && cuda().any_device(&device, 1));
  ck_assert(!cuda().is_device(nullptr) && !cuda().any_device(&host, 1));
  ck_assert_int_eq(cuda().gather(back, &host, 1, 0, 8), 0);
  ck_assert_str_eq(back, "1234567");
  ck_assert_int_eq(cuda().gather(back, &device, 1, 0, 8), -FI_EIO);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "CUDA can't tell what it is"));
  ck_assert_int_eq(cuda().scatter(&device, 1, 0, "7654321", 8), -FI_EIO);
  ck_assert(memory.bytes() == std::vector<char>(8, '-'));
  ck_assert_int_eq(softcuda_control("clear"), 0);
}

/// By these answers CUDA says that it does not know the memory, or that it is not in use.
TEST(memory_that_cuda_does_not_know_is_host_memory, 2) {
  const DeviceMemory memory(8);
  const char* const line = _i ? "fail cuPointerGetAttribute times=1000 error=3"
                              : "fail cuPointerGetAttribute times=1000 error=1";
  ck_assert_int_eq(softcuda_control(line), 0);
  ck_assert(!cuda().is_device(memory.at(0)));
  ck_assert_int_eq(softcuda_control("clear"), 0);
}

/// Memory of cuMemCreate() belongs to no context, and neither the thread nor the device has one.
TEST(memory_is_named_without_a_context) {
  erdma::test::g_made_by = erdma::test::MadeBy::mapping;
  const DeviceMemory memory(100);
  ck_assert_int_eq(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
  erdma::hmem::Allocation named, again;
  std::thread([&] {
    ck_assert(cuda().allocation(memory.at(5), named));
    char byte = 0;
    ck_assert_int_eq(cuda().copy(&byte, memory.at(0), 1), -FI_EIO);
  }).join();
  ck_assert_uint_eq(named.base, memory.pointer());
  ck_assert_uint_gt(named.size, 100);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "has no CUDA context"));
  // A driver that does not tell the range by attributes does so in a context.
  Context context = nullptr;
  ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, 0), kSuccess);
  ck_assert_int_eq(softcuda_control("fail cuPointerGetAttribute error=1 n=2 times=1"), 0);
  ck_assert(cuda().allocation(memory.at(5), again));
  ck_assert_uint_eq(softcuda_calls("cuMemGetAddressRange"), 1);
  ck_assert(again.base == named.base && again.size == named.size && again.id == named.id);
}

TEST(adjacent_mappings_are_one_range) {
  constexpr size_t kPiece = size_t(2) << 20;
  const MemAllocationProperties wanted{1, 0, {1, 0}, nullptr, {}};
  const DeviceMemory context(8);
  DevicePointer range = 0;
  ck_assert_int_eq(cuMemAddressReserve(&range, 3 * kPiece, 0, 0, 0), 0);
  for (size_t i = 0; i < 2; ++i) {
    PhysicalMemory piece = 0;
    ck_assert_int_eq(cuMemCreate(&piece, kPiece, &wanted, 0), 0);
    ck_assert_int_eq(cuMemMap(range + i * kPiece, kPiece, 0, piece, 0), 0);
    ck_assert_int_eq(cuMemRelease(piece), 0);
  }
  const auto* const first = reinterpret_cast<const char*>(range);
  ck_assert(cuda().covers(first, 2 * kPiece));
  ck_assert(cuda().covers(first + 7, 2 * kPiece - 7));
  ck_assert(!cuda().covers(first + 7, 2 * kPiece - 6));
  ck_assert(!cuda().covers(first + 2 * kPiece, 1));
  ck_assert(cuda().covers(context.at(1), 7) && !cuda().covers(context.at(1), 8));
  for (size_t i = 0; i < 2; ++i) ck_assert_int_eq(cuMemUnmap(range + i * kPiece, kPiece), 0);
  ck_assert_int_eq(cuMemAddressFree(range, 3 * kPiece), 0);
}

TEST(freed_memory_is_no_device_memory) {
  void* freed = nullptr;
  {
    const DeviceMemory memory(8);
    freed = memory.at(0);
  }
  ck_assert(!cuda().is_device(freed));
  ck_assert_int_eq(cuda().copy(freed, "12345678", 8), -FI_EIO);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "may have been freed"));
}

/// Memory of cuMemCreate() belongs to no context, and the thread has none.
TEST(copies_are_done_on_return_from_any_thread, 2) {
  erdma::test::g_made_by = erdma::test::MadeBy(_i);
  const DeviceMemory memory(100'000);
  const auto bytes = numbers(100'000);
  std::thread([&] {
    ck_assert_int_eq(cuda().copy(memory.at(0), bytes.data(), bytes.size()), 0);
    std::vector<char> back(bytes.size());
    ck_assert_int_eq(cuda().copy(back.data(), memory.at(0), back.size()), 0);
    ck_assert(back == bytes);
    Context left = nullptr;
    ck_assert_int_eq(cuCtxGetCurrent(&left), kSuccess);
    ck_assert_ptr_null(left);
  }).join();
  ck_assert(memory.bytes() == bytes);
}

/// Another thread of the application releases the context.
TEST(primary_context_that_is_released_meanwhile_stays_for_the_copy) {
  const auto bytes = numbers(100);
  erdma::test::g_made_by = erdma::test::MadeBy::mapping;
  const DeviceMemory memory(bytes);
  std::vector<char> back(100);
  int rc = -1;
  std::thread other([&] {
    ck_assert_int_eq(softcuda_control("release cuMemcpyAsync"), 0);
    rc = cuda().copy(back.data(), memory.at(0), back.size());
  });
  other.join();
  ck_assert_int_eq(rc, 0);
  ck_assert(back == bytes);
  Context again = nullptr;  // the destructor of the memory needs a context
  ck_assert_int_eq(cuDevicePrimaryCtxRetain(&again, 0), kSuccess);
}

TEST(copy_waits_for_no_stream_of_the_application) {
  const DeviceMemory memory(8), theirs(8);
  Stream stream = nullptr;
  ck_assert_int_eq(cuStreamCreate(&stream, 0), kSuccess);
  const std::vector<char> bytes(8, 'x');
  ck_assert_int_eq(cuMemcpyHtoDAsync_v2(theirs.pointer(), bytes.data(), 8, stream), kSuccess);
  ck_assert_int_eq(cuMemcpyHtoDAsync_v2(theirs.pointer(), bytes.data(), 8, nullptr), kSuccess);
  ck_assert_int_eq(cuda().copy(memory.at(0), bytes.data(), 8), 0);
  ck_assert(memory.bytes() == bytes);
  ck_assert(theirs.bytes() != bytes);
  ck_assert_int_eq(cuStreamDestroy_v2(stream), kSuccess);
}

/// The null stream executes a fill after its call has returned, and the provider's stream does not
/// wait for it.
TEST(copy_reads_what_was_written_before) {
  const DeviceMemory memory(8), other(8);
  for (const char value : {'a', 'b'}) {
    std::vector<char> back(8);
    ck_assert_int_eq(cuMemsetD8_v2(other.pointer(), static_cast<unsigned char>(value), 8), 0);
    ck_assert_int_eq(cuMemcpyDtoD_v2(memory.pointer(), other.pointer(), 8), 0);
    ck_assert_int_eq(cuda().copy(back.data(), memory.at(0), 8), 0);
    ck_assert(back == std::vector<char>(8, value));
  }
  ck_assert_uint_eq(softcuda_calls("cuPointerSetAttribute"), 1);
}

TEST(copied_bytes_stay_though_the_memory_was_filled_before) {
  const DeviceMemory memory(8);
  const std::vector<char> bytes(8, 'x');
  ck_assert_int_eq(cuMemsetD8_v2(memory.pointer(), 0, 8), 0);
  ck_assert_int_eq(cuda().copy(memory.at(0), bytes.data(), 8), 0);
  ck_assert_int_eq(cuStreamSynchronize(nullptr), 0);
  ck_assert(memory.bytes() == bytes);
}

/// Memory of cuMemCreate() refuses.
TEST(each_allocation_is_made_synchronous_once, 2) {
  erdma::test::g_made_by = erdma::test::MadeBy(_i);
  for (unsigned allocations = 1; allocations <= 3; ++allocations) {
    const DeviceMemory memory(8);
    for (int copies = 0; copies < 3; ++copies)
      ck_assert_int_eq(cuda().copy(memory.at(1), "1234567", 7), 0);
    erdma::hmem::Allocation found;
    ck_assert(cuda().allocation(memory.at(5), found));
    const unsigned long calls = softcuda_calls(nullptr);
    cuda().make_synchronous(found);
    ck_assert_uint_eq(softcuda_calls(nullptr), calls);
    ck_assert_uint_eq(softcuda_calls("cuPointerSetAttribute"), allocations);
  }
  ck_assert(erdma::test::g_log.empty());
}

TEST(memory_without_a_context_is_made_synchronous_once) {
  erdma::test::g_made_by = erdma::test::MadeBy::mapping;
  const DeviceMemory memory(8);
  erdma::hmem::Allocation found;
  ck_assert(cuda().allocation(memory.at(0), found));
  ck_assert_int_eq(cuDevicePrimaryCtxRelease_v2(0), 0);
  ck_assert_int_eq(cuCtxSetCurrent(nullptr), 0);
  cuda().make_synchronous(found);
  const unsigned long calls = softcuda_calls(nullptr);
  cuda().make_synchronous(found);
  ck_assert_uint_eq(softcuda_calls(nullptr), calls);
}

/// The first copy also creates the stream.
TEST(copy_leaves_captures_of_other_threads_alone, 2) {
  const auto bytes = numbers(1000);
  if (_i) erdma::test::g_made_by = erdma::test::MadeBy::mapping;
  const DeviceMemory memory(1000);
  for (int round = 0; round < 2; ++round) {
    std::vector<char> back(1000);
    OpenCapture open;
    ck_assert_int_eq(cuda().copy(memory.at(0), bytes.data(), 1000), 0);
    ck_assert_int_eq(cuda().copy(back.data(), memory.at(0), 1000), 0);
    ck_assert(back == bytes);
    ck_assert_int_eq(open.end(), kSuccess);
  }
  int mode = kCaptureThreadLocal;
  ck_assert_int_eq(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
  ck_assert_int_eq(mode, kCaptureGlobal);
}

TEST(copy_leaves_a_capture_of_its_own_thread_alone) {
  const auto bytes = numbers(1000);
  const DeviceMemory memory(1000);
  Stream stream = nullptr;
  Graph graph = nullptr;
  ck_assert_int_eq(cuStreamCreate(&stream, 0), kSuccess);
  ck_assert_int_eq(cuStreamBeginCapture_v2(stream, kCaptureGlobal), kSuccess);
  ck_assert_int_eq(cuda().copy(memory.at(0), bytes.data(), 1000), 0);
  ck_assert_int_eq(cuStreamEndCapture(stream, &graph), kSuccess);
  ck_assert(memory.bytes() == bytes);
  cuGraphDestroy(graph);
}

TEST(memory_is_exported_and_allocated_beside_a_capture) {
  const DeviceMemory memory(8192);
  erdma::hmem::Allocation found;
  uint64_t offset = 0;
  OpenCapture open;
  ck_assert(cuda().allocation(memory.at(0), found));
  ck_assert(bool(cuda().export_dmabuf(found, offset)));
  auto scratch = cuda().allocate(64);
  ck_assert_ptr_nonnull(scratch.get());
  scratch.reset();
  ck_assert_uint_eq(softcuda_calls("cuMemFree"), 1);
  ck_assert_int_eq(open.end(), kSuccess);
}

TEST(lists_of_host_and_device_memory_are_copied_whole) {
  const auto bytes = numbers(300);
  const DeviceMemory one(100), two(100);
  std::vector<char> host(100);
  const iovec list[] = {{one.at(0), 100}, {host.data(), 100}, {two.at(0), 100}};
  ck_assert_int_eq(cuda().scatter(list, 3, 0, bytes.data(), 300), 0);
  std::vector<char> back(300);
  ck_assert_int_eq(cuda().gather(back.data(), list, 3, 0, 300), 0);
  ck_assert(back == bytes);
  ck_assert_int_eq(cuda().scatter(list, 3, 50, "AB", 2), 0);
  ck_assert_int_eq(cuda().gather(back.data(), list, 3, 49, 3), 0);
  ck_assert(std::string(back.data(), 3) == "2AB");
}

TEST(failed_copy_is_reported_and_the_next_one_succeeds) {
  const DeviceMemory memory(8);
  char back[8];
  ck_assert_int_eq(softcuda_control("fail cuMemcpyAsync error=700"), 0);
  ck_assert_int_eq(cuda().copy(back, memory.at(0), 8), -FI_EIO);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "CUDA error 700"));
  ck_assert_int_eq(cuda().copy(back, memory.at(0), 8), 0);
  ck_assert_uint_eq(softcuda_calls("cuStreamCreate"), 1);
}

TEST(stream_that_can_not_be_made_fails_the_copy_with_its_error) {
  const DeviceMemory memory(8);
  char back[8];
  ck_assert_int_eq(softcuda_control("fail cuStreamCreate error=304"), 0);
  ck_assert_int_eq(cuda().copy(back, memory.at(0), 8), -FI_EIO);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "CUDA error 304"));
  ck_assert_int_eq(cuda().copy(back, memory.at(0), 8), 0);
}

/// The application has destroyed the context of the provider's stream, and has a new one with the
/// same handle.
TEST(lost_stream_is_replaced) {
  const DeviceMemory memory(8);
  char back[8];
  ck_assert_int_eq(cuda().copy(back, memory.at(0), 8), 0);
  ck_assert_int_eq(softcuda_control("fail cuMemcpyAsync error=400"), 0);
  ck_assert_int_eq(cuda().copy(back, memory.at(0), 8), 0);
  ck_assert_uint_eq(softcuda_calls("cuStreamCreate"), 2);
}

TEST(forked_child_makes_no_call) {
  const DeviceMemory memory(8);
  Cuda& driver = cuda();
  const pid_t pid = fork();
  if (pid == 0) {
    const unsigned long before = softcuda_calls(nullptr);
    char back[8];
    const bool refused = !driver.is_device(memory.at(0)) && !Cuda::get() &&
                         driver.copy(back, memory.at(0), 8) == -FI_EIO;
    _exit(refused && softcuda_calls(nullptr) == before ? 0 : 1);
  }
  int status = 0;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}
