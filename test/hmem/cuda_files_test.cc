// Tests device memory that is passed by descriptor, on the simulated driver.
#include <dirent.h>
#include <fcntl.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "hmem/cuda_ipc.h"
#include "libcheck.h"
#include "softcuda/device_memory.h"
#include "softcuda/open_capture.h"

using erdma::hmem::Cuda;
using erdma::hmem::FileName;
using erdma::hmem::IpcHandle;
using erdma::hmem::IpcMemory;
using namespace erdma::test;
using erdma::util::Fd;
using namespace erdma::hmem::cuda_api;

namespace {

constexpr size_t kPiece = size_t(2) << 20;

void setup() {
  setenv("SOFTCUDA_DEVICES", "2", 1);
  g_made_by = MadeBy::mapping;
}

Cuda& cuda() {
  Cuda* const driver = Cuda::get();
  ck_assert_ptr_nonnull(driver);
  return *driver;
}

struct Shared {
  IpcHandle handle{};
  uint64_t offset = 0;
  FileName name() const { return FileName::of(handle); }
};

Shared share(const void* pointer) {
  Shared made;
  ck_assert_int_eq(cuda().ipc().share(pointer, made.handle, made.offset), 0);
  ck_assert(made.handle.kind == IpcHandle::Kind::file);
  return made;
}

struct Imported {
  IpcHandle handle{};
  IpcMemory memory{};
  int error = 0;
};

Imported import(const Fd& file, size_t size, const void* near) {
  Imported made;
  auto memory = cuda().ipc().import_file(file, size, near, made.handle);
  made.error = memory.error();
  if (memory) made.memory = *memory;
  return made;
}

/// Imports memory as another process does.
Imported import(const Shared& theirs, const void* near) {
  const Fd file = cuda().ipc().export_file(theirs.handle);
  ck_assert(bool(file));
  return import(file, theirs.name().size, near);
}

std::vector<char> content(const Imported& from, uint64_t offset, size_t length) {
  std::vector<char> bytes(length);
  const auto* at = reinterpret_cast<const void*>(from.memory.base + offset);
  ck_assert_int_eq(cuda().copy(bytes.data(), at, length), 0);
  return bytes;
}

size_t open_files() {
  DIR* const directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory)) ++count;
  closedir(directory);
  return count;
}

/// The objects that the driver still holds: descriptors, ranges and physical memory.
struct Left {
  const size_t files = open_files();
  const unsigned long ranges =
      softcuda_calls("cuMemAddressReserve") - softcuda_calls("cuMemAddressFree");
  const unsigned long handles =
      softcuda_calls("cuMemRetainAllocationHandle") + softcuda_calls("cuMemCreate") +
      softcuda_calls("cuMemImportFromShareableHandle") - softcuda_calls("cuMemRelease");
  bool operator==(const Left&) const = default;
};

}  // namespace

TEST_CASE(.set_up = setup);

TEST(memory_is_exported_mapped_and_unmapped_beside_a_capture) {
  const DeviceMemory memory(std::vector<char>(1000, 'a')), here(8), second(8, 1);
  const Left before;
  OpenCapture open;
  const Imported mapped = import(share(memory.at(0)), here.at(0));
  ck_assert_int_eq(mapped.error, 0);
  ck_assert(bool(cuda().ipc().open(mapped.handle, second.at(0))));
  for (int users = 2; users > 0; --users) cuda().ipc().close(mapped.handle);
  ck_assert(Left{} == before);
  ck_assert_int_eq(open.end(), kSuccess);
}

TEST(exported_memory_is_read_where_it_is_mapped) {
  const DeviceMemory memory(std::vector<char>(1000, 'a')), here(8);
  const Left before;
  for (const void* near :
       {static_cast<const void*>(here.at(0)), static_cast<const void*>(nullptr)}) {
    const Shared theirs = share(memory.at(900));
    ck_assert_uint_eq(theirs.offset, 900);
    const Imported mapped = import(theirs, near);
    ck_assert_int_eq(mapped.error, 0);
    ck_assert_uint_eq(mapped.memory.size, kPiece);
    ck_assert_uint_ne(mapped.memory.base, memory.pointer());
    ck_assert(content(mapped, theirs.offset, 100) == std::vector<char>(100, 'a'));
    ck_assert_uint_eq(cuda().ipc().open(mapped.handle, nullptr)->base, mapped.memory.base);
    cuda().ipc().close(mapped.handle);
    ck_assert(!(Left{} == before));
    cuda().ipc().close(mapped.handle);
    ck_assert(Left{} == before);
    ck_assert_int_eq(cuda().ipc().open(mapped.handle, nullptr).error(), -FI_EOPNOTSUPP);
  }
}

/// A thread without a context copies to host memory in the primary context of the owner's device,
/// which the application may release after the memory was mapped. It stays this thread's current
/// context.
TEST(mapping_is_opened_for_host_memory_only_where_a_copy_has_a_context) {
  const DeviceMemory memory(std::vector<char>(1000, 'a')), here(8);
  const Imported mapped = import(share(memory.at(0)), here.at(0));
  for (int uses = 0; uses < 2; ++uses) ck_assert_int_eq(cuDevicePrimaryCtxRelease_v2(0), 0);
  ck_assert_int_eq(cuda().ipc().open(mapped.handle, nullptr).error(), -FI_EOPNOTSUPP);
  ck_assert(bool(cuda().ipc().open(mapped.handle, here.at(0))));
  Context context = nullptr;
  ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, 0), 0);
  const unsigned long before = softcuda_calls("cuDevicePrimaryCtxRetain");
  ck_assert(bool(cuda().ipc().open(mapped.handle, nullptr)));
  ck_assert_uint_eq(softcuda_calls("cuDevicePrimaryCtxRetain"), before);  // a question is enough
  for (int uses = 0; uses < 3; ++uses) cuda().ipc().close(mapped.handle);
}

/// The new mapping has the same address, as in an allocator that grows and shrinks a range.
TEST(memory_that_is_mapped_anew_has_another_name) {
  auto memory = std::make_unique<DeviceMemory>(kPiece);
  DevicePointer range = 0;
  PhysicalMemory one = 0, two = 0;
  const MemAllocationProperties wanted{kMemoryPinned, kHandlePosixFd, {kLocationDevice, 0}, {}, {}};
  const MemAccess access{{kLocationDevice, 0}, kAccessReadWrite};
  ck_assert_int_eq(cuMemAddressReserve(&range, kPiece, 0, 0, 0), 0);
  ck_assert_int_eq(cuMemCreate(&one, kPiece, &wanted, 0), 0);
  ck_assert_int_eq(cuMemCreate(&two, kPiece, &wanted, 0), 0);
  const auto map = [&](PhysicalMemory what, char value) {
    ck_assert_int_eq(cuMemMap(range, kPiece, 0, what, 0), 0);
    ck_assert_int_eq(cuMemSetAccess(range, kPiece, &access, 1), 0);
    fill_memory(range, value, 10);
  };
  map(one, 'a');
  const Shared old = share(reinterpret_cast<void*>(range));
  const Imported opened = import(old, nullptr);
  ck_assert_int_eq(cuMemUnmap(range, kPiece), 0);
  ck_assert(!cuda().ipc().export_file(old.handle));
  map(two, 'b');
  ck_assert(!cuda().ipc().export_file(old.handle));
  const Shared anew = share(reinterpret_cast<void*>(range));
  ck_assert(!(anew.handle == old.handle));
  ck_assert_uint_eq(anew.name().base, old.name().base);
  const Imported other = import(anew, nullptr);
  ck_assert(content(other, 0, 10) == std::vector<char>(10, 'b'));
  ck_assert(content(opened, 0, 10) == std::vector<char>(10, 'a'));
  cuda().ipc().close(opened.handle);
  cuda().ipc().close(other.handle);
  ck_assert_int_eq(cuMemUnmap(range, kPiece), 0);
  ck_assert_int_eq(cuMemAddressFree(range, kPiece), 0);
  ck_assert_int_eq(cuMemRelease(one), 0);
  ck_assert_int_eq(cuMemRelease(two), 0);
}

TEST(piece_of_a_range_is_named_by_itself) {
  DevicePointer range = 0;
  const MemAllocationProperties wanted{kMemoryPinned, kHandlePosixFd, {kLocationDevice, 0}, {}, {}};
  const MemAccess access{{kLocationDevice, 0}, kAccessReadWrite};
  const DeviceMemory context(8);
  ck_assert_int_eq(cuMemAddressReserve(&range, 2 * kPiece, 0, 0, 0), 0);
  for (size_t i = 0; i < 2; ++i) {
    PhysicalMemory piece = 0;
    ck_assert_int_eq(cuMemCreate(&piece, kPiece, &wanted, 0), 0);
    ck_assert_int_eq(cuMemMap(range + i * kPiece, kPiece, 0, piece, 0), 0);
    ck_assert_int_eq(cuMemRelease(piece), 0);  // the mapping keeps the memory
  }
  ck_assert_int_eq(cuMemSetAccess(range, 2 * kPiece, &access, 1), 0);
  fill_memory(range + kPiece + 5, 'z', 1);
  const Shared second = share(reinterpret_cast<void*>(range + kPiece + 5));
  ck_assert_uint_eq(second.offset, 5);
  ck_assert_uint_eq(second.name().size, kPiece);
  const Imported mapped = import(second, nullptr);
  ck_assert_int_eq(content(mapped, 5, 1)[0], 'z');
  cuda().ipc().close(mapped.handle);
  for (size_t i = 0; i < 2; ++i) ck_assert_int_eq(cuMemUnmap(range + i * kPiece, kPiece), 0);
  ck_assert_int_eq(cuMemAddressFree(range, 2 * kPiece), 0);
}

TEST(memory_that_was_not_made_to_be_exported_is_refused_once) {
  g_made_by = MadeBy::private_mapping;
  const DeviceMemory memory(1000);
  Shared made;
  for (int i = 0; i < 3; ++i)
    ck_assert_int_eq(cuda().ipc().share(memory.at(0), made.handle, made.offset), -FI_EOPNOTSUPP);
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "POSIX file descriptor"));
  ck_assert_uint_eq(softcuda_calls("cuMemRetainAllocationHandle"),
                    softcuda_calls("cuMemRelease") - 1);
}

TEST(refusal_of_any_call_leaves_nothing_behind_and_is_said_once, 5) {
  const char* const calls[] = {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
                               "cuMemSetAccess", "cuMemGetAllocationPropertiesFromHandle"};
  const DeviceMemory memory(std::vector<char>(1000, 'a')), here(8);
  const Shared theirs = share(memory.at(0));
  const Fd file = cuda().ipc().export_file(theirs.handle);
  const size_t files = open_files();
  const std::string fault = std::string("fail ") + calls[_i] + " error=801 times=2";
  ck_assert_int_eq(softcuda_control(fault.c_str()), 0);
  for (int i = 0; i < 2; ++i)
    ck_assert_int_eq(import(file, kPiece, here.at(0)).error, -FI_EOPNOTSUPP);
  ck_assert_uint_eq(open_files(), files);
  const std::string said = erdma::test::only_log_line();
  ck_assert(_i == 4 ? said.empty() : erdma::test::contains(said, calls[_i]));
  const Imported mapped = import(file, kPiece, here.at(0));
  ck_assert_int_eq(mapped.error, 0);
  ck_assert(content(mapped, 0, 1000) == std::vector<char>(1000, 'a'));
  cuda().ipc().close(mapped.handle);
}

TEST(file_of_another_sort_or_size_is_refused) {
  const DeviceMemory memory(1000), here(8);
  const Fd file = cuda().ipc().export_file(share(memory.at(0)).handle),
           null(open("/dev/null", O_RDONLY));
  const Left before;
  ck_assert_int_eq(import(null, kPiece, here.at(0)).error, -FI_EOPNOTSUPP);
  ck_assert_int_eq(import(Fd(), kPiece, here.at(0)).error, -FI_EOPNOTSUPP);
  for (const size_t size : {size_t(0), size_t(1000), 2 * kPiece, size_t(1) << 62})
    ck_assert_int_eq(import(file, size, here.at(0)).error, -FI_EOPNOTSUPP);
  ck_assert_uint_eq(Left{}.files, before.files);
}

TEST(export_that_fails_is_said_once) {
  const DeviceMemory memory(1000);
  const Shared ours = share(memory.at(0));
  ck_assert_int_eq(softcuda_control("fail cuMemExportToShareableHandle error=304 times=2"), 0);
  for (int i = 0; i < 2; ++i) ck_assert(!cuda().ipc().export_file(ours.handle));
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "CUDA error 304"));
  ck_assert(bool(cuda().ipc().export_file(ours.handle)));
}

/// The other device reads the memory itself, so it needs access.
TEST(another_device_may_read_what_is_open) {
  const DeviceMemory memory(std::vector<char>(1000, 'a')), near(8);
  const DeviceMemory far(1000, 1);
  const Imported mapped = import(share(memory.at(0)), near.at(0));
  ck_assert_int_eq(softcuda_control("fail cuMemSetAccess error=217"), 0);
  ck_assert_int_eq(cuda().ipc().open(mapped.handle, far.at(0)).error(), -FI_EOPNOTSUPP);
  ck_assert(bool(cuda().ipc().open(mapped.handle, far.at(0))));
  ck_assert_int_eq(cuda().copy(far.at(0), reinterpret_cast<const void*>(mapped.memory.base), 1000),
                   0);
  ck_assert(far.bytes() == std::vector<char>(1000, 'a'));
  for (int uses = 0; uses < 2; ++uses) cuda().ipc().close(mapped.handle);
}
