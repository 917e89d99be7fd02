#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include <check.h>
#include <rdma/fi_errno.h>

#include "util/process_epoch.h"

namespace {

using erdma::transport::shm::Segment;
using erdma::util::Fd;

constexpr size_t kBytes = 64 * 1024;

START_TEST(a_created_segment_is_zeroed_and_shared_through_its_descriptor) {
  auto made = Segment::create("test", kBytes, kBytes);
  ck_assert(bool(made));
  auto* bytes = static_cast<unsigned char*>(made->data());
  for (size_t i = 0; i < kBytes; ++i) ck_assert_uint_eq(bytes[i], 0);
  auto adopted = Segment::adopt(Fd(dup(made->fd())), kBytes);
  ck_assert(bool(adopted));
  bytes[kBytes - 1] = 42;
  ck_assert_uint_eq(static_cast<unsigned char*>(adopted->data())[kBytes - 1], 42);
}
END_TEST

START_TEST(a_segment_can_neither_shrink_nor_grow) {
  auto made = Segment::create("test", kBytes, kBytes);
  ck_assert_int_eq(ftruncate(made->fd(), 0), -1);
  ck_assert_int_eq(ftruncate(made->fd(), kBytes * 2), -1);
  ck_assert_int_eq(fcntl(made->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}
END_TEST

START_TEST(adopt_refuses_memory_without_seals) {
  Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ck_assert_int_eq(ftruncate(fd.get(), kBytes), 0);
  ck_assert_int_eq(Segment::adopt(std::move(fd), kBytes).error(), -FI_EINVAL);
}
END_TEST

START_TEST(adopt_refuses_another_size) {
  auto made = Segment::create("test", kBytes, kBytes);
  ck_assert_int_eq(Segment::adopt(Fd(dup(made->fd())), kBytes * 2).error(), -FI_EINVAL);
  ck_assert_int_eq(Segment::adopt(Fd(dup(made->fd())), kBytes / 2).error(), -FI_EINVAL);
}
END_TEST

START_TEST(adopt_refuses_what_is_no_memory) {
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  const Fd other(ends[1]);
  ck_assert_int_eq(Segment::adopt(Fd(ends[0]), kBytes).error(), -FI_EINVAL);
  ck_assert_int_eq(Segment::adopt(Fd(), kBytes).error(), -FI_EINVAL);
}
END_TEST

START_TEST(create_says_which_limit_is_reached) {
  rlimit before{};
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int error = Segment::create("test", kBytes, kBytes).error();
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
  ck_assert_int_eq(error, -FI_EMFILE);
}
END_TEST

START_TEST(more_of_a_segment_is_backed_later) {
  auto made = Segment::create("test", kBytes, 4096);
  ck_assert_int_eq(made->back(4096, kBytes - 4096), 0);
  auto second = Segment::create("test", kBytes, 4096);
  second->close_fd_unless_needed();
  ck_assert_int_eq(second->back(4096, kBytes - 4096), 0);
  unsigned char present[kBytes / 4096];
  ck_assert_int_eq(mincore(second->data(), kBytes, present), 0);
  for (unsigned char page : present) ck_assert(page & 1);
}
END_TEST

START_TEST(a_forked_child_neither_has_nor_unmaps_the_memory) {
  erdma::util::register_fork_handler();
  auto made = Segment::create("test", kBytes, kBytes);
  void* base = made->data();
  const pid_t child = fork();
  if (child == 0) {
    unsigned char present[kBytes / 4096];
    if (!mincore(base, kBytes, present)) _exit(1);  // must be unmapped
    void* own =
        mmap(base, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (own != base) _exit(2);
    made->reset();
    static_cast<char*>(own)[0] = 1;  // still there
    _exit(0);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  std::memset(base, 1, kBytes);
}
END_TEST

Suite* suite() {
  Suite* suite = suite_create("shm segment");
  TCase* tc = tcase_create("segment");
  tcase_add_test(tc, a_created_segment_is_zeroed_and_shared_through_its_descriptor);
  tcase_add_test(tc, a_segment_can_neither_shrink_nor_grow);
  tcase_add_test(tc, adopt_refuses_memory_without_seals);
  tcase_add_test(tc, adopt_refuses_another_size);
  tcase_add_test(tc, adopt_refuses_what_is_no_memory);
  tcase_add_test(tc, create_says_which_limit_is_reached);
  tcase_add_test(tc, more_of_a_segment_is_backed_later);
  tcase_add_test(tc, a_forked_child_neither_has_nor_unmaps_the_memory);
  suite_add_tcase(suite, tc);
  return suite;
}

}  // namespace

int main() {
  SRunner* runner = srunner_create(suite());
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
