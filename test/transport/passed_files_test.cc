// Tests the descriptors that one side of a shared-memory link passes to the other.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "libcheck.h"
#include "transport/shm_pair.h"

namespace erdma::test {
namespace {

size_t open_files() {
  DIR* const directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory)) ++count;
  closedir(directory);
  return count;
}

ino_t inode(const util::Fd& file) {
  struct stat status {};
  ck_assert_int_eq(fstat(file.get(), &status), 0);
  return status.st_ino;
}

struct Passing : Met {
  /// Passes a new file from a and returns its number.
  uint32_t pass_file(util::Fd& file) {
    file.reset(memfd_create("handed", MFD_CLOEXEC));
    auto name = a_to_b().optional().files->pass(file);
    ck_assert_int_eq(name.error(), 0);
    return *name;
  }
  util::Result<util::Fd> take(uint32_t name) {
    auto taken = b_to_a().optional().files->take(name);
    while (taken.error() == -FI_EAGAIN) poll(), taken = b_to_a().optional().files->take(name);
    return taken;
  }
};

TEST(a_file_that_is_handed_over_is_taken_once) {
  Passing pair;
  const size_t before = open_files();
  {
    util::Fd one, two;
    const uint32_t first = pair.pass_file(one), second = pair.pass_file(two);
    auto taken = pair.take(second);
    ck_assert_int_eq(taken.error(), 0);
    ck_assert_uint_eq(inode(*taken), inode(two));
    ck_assert_uint_eq(inode(*pair.take(first)), inode(one));
    ck_assert_int_eq(pair.take(first).error(), -FI_EOPNOTSUPP);
    ck_assert_int_eq(pair.b_to_a().optional().files->take(second + 1).error(), -FI_EAGAIN);
  }
  ck_assert_uint_eq(open_files(), before);
}

TEST(no_more_than_sixteen_files_are_kept_and_none_beyond_the_link) {
  Passing pair;
  const size_t before = open_files();
  util::Fd file;
  uint32_t last = 0;
  for (int i = 0; i < 40; ++i) {
    last = pair.pass_file(file);
    if (i % 16 == 15) ck_assert(bool(pair.take(last)));
  }
  const uint32_t names[] = {last - 16, last - 15};
  ck_assert(bool(pair.take(last)));
  ck_assert_int_eq(pair.take(names[0]).error(), -FI_EOPNOTSUPP);
  ck_assert(bool(pair.take(names[1])));
  file.reset();
  ck_assert_uint_le(open_files(), before + 16);
  pair.b_to_a().fail(-FI_ECONNRESET);
  while (pair.b.sink->downs.empty()) pair.b.poll();
  ck_assert_uint_le(open_files(), before);
  ck_assert_int_eq(pair.b_to_a().optional().files->take(last).error(), -FI_EOPNOTSUPP);
}

TEST(a_file_for_which_there_is_no_room_costs_no_link) {
  Passing pair;
  util::Fd file;
  ck_assert(bool(pair.take(pair.pass_file(file))));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t usual = limit.rlim_cur;
  file.reset(memfd_create("handed", MFD_CLOEXEC));
  limit.rlim_cur = 3;
  setrlimit(RLIMIT_NOFILE, &limit);
  auto name = pair.a_to_b().optional().files->pass(file);
  ck_assert_int_eq(name.error(), 0);
  ck_assert_int_eq(pair.take(*name).error(), -FI_EOPNOTSUPP);
  limit.rlim_cur = usual;
  setrlimit(RLIMIT_NOFILE, &limit);
  ck_assert(bool(pair.take(pair.pass_file(file))));
  ck_assert(pair.b.sink->downs.empty());
}

TEST(a_link_that_is_not_up_hands_nothing_over) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  const util::Fd file(memfd_create("handed", MFD_CLOEXEC));
  ck_assert_int_eq(pair.a_to_b().optional().files->pass(file).error(), -FI_ENOTCONN);
  ck_assert_int_eq(pair.b_to_a().optional().files->take(1).error(), -FI_EOPNOTSUPP);
}

}  // namespace

}  // namespace erdma::test
