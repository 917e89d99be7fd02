#include "transport/shm/memfd.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <rdma/fi_errno.h>

#include "fake/refused_call.h"
#include "libcheck.h"
#include "util/process_epoch.h"

namespace {

using erdma::transport::shm::Memfd;
using erdma::util::Fd;

constexpr size_t kBytes = 64 * 1024;

/// State of the fake madvise(), fallocate() and getpagesize() below.
struct FakeKernel {
  size_t page = 0;             ///< page size if larger than the real one; 0 = the real one
  const void* base = nullptr;  ///< start of the mapping, which counts as the start of a page
  int no_memory = 0;           ///< errno of each call that would allocate memory; 0 = none
  size_t allocates = 0;        ///< bytes that madvise() allocates before it fails so
} g_kernel;

TEST(a_created_segment_is_zeroed_and_shared_through_its_descriptor) {
  auto made = Memfd::create("test", kBytes, kBytes);
  ck_assert(bool(made));
  auto* bytes = static_cast<unsigned char*>(made->data());
  for (size_t i = 0; i < kBytes; ++i) ck_assert_uint_eq(bytes[i], 0);
  auto adopted = Memfd::adopt(Fd(dup(made->fd())), kBytes);
  ck_assert(bool(adopted));
  bytes[kBytes - 1] = 42;
  ck_assert_uint_eq(static_cast<unsigned char*>(adopted->data())[kBytes - 1], 42);
}

/// With vm.memfd_noexec = 2 the kernel refuses a file that could be executed (EACCES). Kernels
/// before 6.3 do not know the flag of those that can't (EINVAL).
TEST(a_segment_cannot_be_executed_where_the_kernel_knows_such_files, 2) {
  constexpr unsigned kBefore = MFD_CLOEXEC | MFD_ALLOW_SEALING, kNoExecSeal = 8;
  erdma::fake::refuse_call(SYS_memfd_create, _i ? EINVAL : EACCES, 1,
                           _i ? kBefore | kNoExecSeal : kBefore);
  auto made = Memfd::create("test", kBytes, kBytes);
  ck_assert(bool(made));
  struct stat status {};
  ck_assert_int_eq(fstat(made->fd(), &status), 0);
  if (_i == 0) ck_assert_uint_eq(status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH), 0);
  ck_assert(bool(Memfd::adopt(Fd(dup(made->fd())), kBytes)));
}

TEST(a_segment_can_neither_shrink_nor_grow) {
  auto made = Memfd::create("test", kBytes, kBytes);
  ck_assert_int_eq(ftruncate(made->fd(), 0), -1);
  ck_assert_int_eq(ftruncate(made->fd(), kBytes * 2), -1);
  ck_assert_int_eq(fcntl(made->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(adopt_refuses_memory_without_seals) {
  Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ck_assert_int_eq(ftruncate(fd.get(), kBytes), 0);
  ck_assert_int_eq(Memfd::adopt(std::move(fd), kBytes).error(), -FI_EINVAL);
}

TEST(adopt_refuses_another_size) {
  auto made = Memfd::create("test", kBytes, kBytes);
  ck_assert_int_eq(Memfd::adopt(Fd(dup(made->fd())), kBytes * 2).error(), -FI_EINVAL);
  ck_assert_int_eq(Memfd::adopt(Fd(dup(made->fd())), kBytes / 2).error(), -FI_EINVAL);
}

TEST(adopt_refuses_what_is_no_memory) {
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  const Fd other(ends[1]);
  ck_assert_int_eq(Memfd::adopt(Fd(ends[0]), kBytes).error(), -FI_EINVAL);
  ck_assert_int_eq(Memfd::adopt(Fd(), kBytes).error(), -FI_EINVAL);
}

TEST(create_says_which_limit_is_reached) {
  rlimit before{};
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int error = Memfd::create("test", kBytes, kBytes).error();
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
  ck_assert_int_eq(error, -FI_EMFILE);
}

// By default, the kernel ends a process that exceeds the limit by SIGXFSZ.
TEST(a_limit_of_file_sizes_is_an_error_and_no_signal) {
  rlimit before{};
  ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
  const int error = Memfd::create("test", 8192, 4096).error();
  const bool fits = bool(Memfd::create("test", 4096, 4096));
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  ck_assert_int_eq(error, -EFBIG);
  ck_assert(fits);
}

TEST(more_of_a_segment_is_backed_later) {
  auto made = Memfd::create("test", kBytes, 4096);
  ck_assert_int_eq(made->back(4096, kBytes - 4096), 0);
  auto second = Memfd::create("test", kBytes, 4096);
  second->close_fd_unless_needed();
  ck_assert_int_eq(second->back(4096, kBytes - 4096), 0);
  unsigned char present[kBytes / 4096];
  ck_assert_int_eq(mincore(second->data(), kBytes, present), 0);
  for (unsigned char page : present) ck_assert(page & 1);
}

/// Kernels for aarch64 often have larger pages. There the second 4 KiB of a segment begin in the
/// middle of a page, which madvise() refuses.
TEST(more_of_a_segment_is_backed_later_whatever_the_size_of_a_page) {
  for (const size_t page : {size_t{4096}, size_t{16} * 1024, size_t{64} * 1024}) {
    constexpr size_t kLong = 4096 + 16 * 32 * 1024;
    auto made = Memfd::create("test", kLong, 4096);
    ck_assert(bool(made));
    made->close_fd_unless_needed();
    ck_assert_int_eq(made->fd(), -1);
    g_kernel = {page, made->data(), 0};
    const int rc = made->back(4096, kLong - 4096);
    g_kernel = {};
    ck_assert_int_eq(rc, 0);
    unsigned char present[kLong / 4096];
    ck_assert_int_eq(mincore(made->data(), kLong, present), 0);
    for (unsigned char each : present) ck_assert(each & 1);
  }
}

TEST(memory_that_cannot_be_had_is_an_error) {
  g_kernel.no_memory = ENOSPC;
  ck_assert_int_eq(Memfd::create("test", kBytes, kBytes).error(), -FI_ENOMEM);
  g_kernel.no_memory = 0;
  auto with_fd = Memfd::create("test", kBytes, 4096);
  auto without = Memfd::create("test", kBytes, 4096);
  ck_assert(bool(with_fd) && bool(without));
  without->close_fd_unless_needed();
  ck_assert_int_eq(without->fd(), -1);
  g_kernel.no_memory = ENOMEM;
  ck_assert_int_eq(with_fd->back(4096, kBytes - 4096), -FI_ENOMEM);
  ck_assert_int_eq(without->back(4096, kBytes - 4096), -FI_ENOMEM);
  g_kernel.no_memory = 0;
  ck_assert_int_eq(with_fd->back(4096, kBytes - 4096), 0);
  ck_assert_int_eq(without->back(4096, kBytes - 4096), 0);
}

TEST(memory_that_was_had_in_part_only_is_freed) {
  auto made = Memfd::create("test", kBytes, 4096);
  made->close_fd_unless_needed();
  ck_assert_int_eq(made->fd(), -1);
  static_cast<char*>(made->data())[0] = 1;
  g_kernel.no_memory = ENOMEM;
  g_kernel.allocates = kBytes / 2;
  ck_assert_int_eq(made->back(4096, kBytes - 4096), -FI_ENOMEM);
  unsigned char present[kBytes / 4096];
  ck_assert_int_eq(mincore(made->data(), kBytes, present), 0);
  for (size_t i = 0; i < sizeof(present); ++i) ck_assert_int_eq(present[i] & 1, i == 0);
  ck_assert_int_eq(static_cast<char*>(made->data())[0], 1);
}

TEST(a_descriptor_stays_open_where_the_kernel_cannot_do_without) {
  auto made = Memfd::create("test", kBytes, 4096);
  g_kernel.no_memory = EINVAL;  // kernels before 5.14 answer so to MADV_POPULATE_WRITE
  made->close_fd_unless_needed();
  g_kernel.no_memory = 0;
  ck_assert_int_ge(made->fd(), 0);
}

TEST(a_forked_child_neither_has_nor_unmaps_the_memory) {
  erdma::util::register_fork_handler();
  auto made = Memfd::create("test", kBytes, kBytes);
  void* base = made->data();
  const pid_t child = fork();
  if (child == 0) {
    unsigned char present[kBytes / 4096];
    if (!mincore(base, kBytes, present)) _exit(1);  // must be unmapped
    void* own =
        mmap(base, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (own != base) _exit(2);
    made->reset();
    static_cast<char*>(own)[0] = 1;  // the child's mapping is still there
    _exit(0);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  std::memset(base, 1, kBytes);
}

}  // namespace

extern "C" int madvise(void* address, size_t bytes, int advice) noexcept {
  constexpr int kPopulateWrite = 23;
  const auto offset = uintptr_t(address) - uintptr_t(g_kernel.base);
  int error = 0;
  if (advice == kPopulateWrite) error = g_kernel.no_memory;
  if (error && g_kernel.allocates)
    (void)syscall(SYS_madvise, address, g_kernel.allocates, kPopulateWrite);
  if (g_kernel.page && offset % g_kernel.page) error = EINVAL;
  if (!error) return int(syscall(SYS_madvise, address, bytes, advice));
  errno = error;
  return -1;
}

extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (!g_kernel.no_memory) return int(syscall(SYS_fallocate, fd, mode, offset, bytes));
  errno = g_kernel.no_memory;
  return -1;
}

extern "C" int getpagesize() noexcept {
  return int(g_kernel.page ? g_kernel.page : getauxval(AT_PAGESZ));
}
