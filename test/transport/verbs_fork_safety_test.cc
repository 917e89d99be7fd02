#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "libcheck.h"
#include "transport/verbs/fork_safety.h"

/// Tests which pages a child gets on kernels that do not copy registered memory for it.
namespace erdma::test {
namespace {

using transport::verbs::give_to_children;
using transport::verbs::keep_from_children;

constexpr size_t kTestedPages = 4;

struct Pages {
  Pages() { map(nullptr, 0); }
  ~Pages() { munmap(base, kTestedPages * bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void map(void* at, int flags) {
    base = static_cast<std::byte*>(mmap(at, kTestedPages * bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
    ck_assert_ptr_ne(base, MAP_FAILED);
  }
  void keep(size_t first, size_t count) const {
    ck_assert_int_eq(keep_from_children(base + first * bytes, count * bytes), 0);
  }
  void give(size_t first, size_t count) const {
    give_to_children(base + first * bytes, count * bytes);
  }
  /// A letter for each page: y, a child gets it; n, it does not.
  std::string inherited() const {
    std::string result;
    for (size_t i = 0; i < kTestedPages; ++i) {
      const pid_t child = fork();
      unsigned char resident = 0;
      if (child == 0) _exit(mincore(base + i * bytes, bytes, &resident) ? 1 : 0);
      int status = -1;
      ck_assert_int_eq(waitpid(child, &status, 0), child);
      result += status ? 'n' : 'y';
    }
    return result;
  }

  const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  std::byte* base = nullptr;
};

TEST(a_child_gets_the_pages_that_no_registration_holds) {
  Pages pages;
  ck_assert(pages.inherited() == "yyyy");
  pages.keep(0, 3);
  pages.keep(2, 2);
  ck_assert(pages.inherited() == "nnnn");
  pages.give(0, 3);
  ck_assert(pages.inherited() == "yynn");
  pages.give(2, 2);
  ck_assert(pages.inherited() == "yyyy");
}

/// As a heap does that shrinks and grows again, before its registration ends.
TEST(memory_that_was_unmapped_while_it_was_held_is_not_kept_for_ever) {
  Pages pages;
  pages.keep(0, kTestedPages);
  ck_assert_int_eq(munmap(pages.base, kTestedPages * pages.bytes), 0);
  pages.map(pages.base, MAP_FIXED);
  pages.keep(0, 2);
  pages.give(0, kTestedPages);
  ck_assert(pages.inherited() == "nnyy");
  pages.give(0, 2);
  ck_assert(pages.inherited() == "yyyy");
}

/// The memory ends in a hole, so it cannot be registered.
TEST(what_cannot_be_kept_is_not_held) {
  Pages pages;
  ck_assert_int_eq(munmap(pages.base + 2 * pages.bytes, pages.bytes), 0);
  ck_assert_int_ne(keep_from_children(pages.base, kTestedPages * pages.bytes), 0);
  pages.keep(0, 1);
  pages.give(0, 1);
  ck_assert(pages.inherited().substr(0, 2) == "yy");
}

TEST(a_child_counts_anew) {
  Pages pages;
  pages.keep(0, 2);
  const pid_t child = fork();
  if (child == 0) {
    pages.keep(2, 1);
    pages.give(2, 1);
    _exit(pages.inherited().substr(2) == "yy" ? 0 : 1);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  pages.give(0, 2);
  ck_assert(pages.inherited() == "yyyy");
}

}  // namespace
}  // namespace erdma::test
