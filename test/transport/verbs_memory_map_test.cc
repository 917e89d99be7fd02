// Tests how the mappings of this process are found.
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "libcheck.h"
#include "transport/verbs/memory_map.h"
#include "transport/verbs_registration_rig.h"

namespace {

using namespace erdma::test;
using erdma::transport::verbs::find_mapping;
using erdma::transport::verbs::Mapping;
using erdma::transport::verbs::parse_mapping;

struct MapLine {
  const char* text;
  bool parsed, ours;
};
constexpr MapLine kLines[] = {
    {"7f00-7f20 rw-p 00000000 00:00 0 ", true, true},
    {"7f00-7f20 rw-p 00000000 00:00 0                          [heap]", true, true},
    {"7f00-7f20 rw-p 00000000 00:00 0                          [anon:mine]", true, true},
    {"7f00-7f20 rw-s 00000000 00:01 1027  /dev/zero (deleted)", true, false},
    {"7f00-7f20 r--p 00000000 00:00 0 ", true, false},
    {"7f00-7f20 ---p 00000000 00:00 0 ", true, false},
    {"7f00-7f20 rw-p 00002000 fd:01 17 /usr/lib/libc.so.6", true, false},
    {"7f00-7f20 rw-p 00000000 00:0f 99 /anon_hugepage (deleted)", true, true},
    {"7f00-7f20 rw-s 00000000 00:0f 99 /anon_hugepage (deleted)", true, false},
    {"7f00-7f20 rw-p 00000000 00:0f 99 /huge/anon_hugepage (deleted)", true, false},
    {"", false, false},
    {"nonsense", false, false},
};

TEST(lines_of_proc_maps_tell_whose_memory_it_is, std::size(kLines)) {
  Mapping mapping;
  ck_assert_int_eq(parse_mapping(kLines[_i].text, mapping), kLines[_i].parsed);
  if (!kLines[_i].parsed) return;
  ck_assert_uint_eq(mapping.range.start, 0x7f00);
  ck_assert_uint_eq(mapping.range.end, 0x7f20);
  ck_assert_int_eq(mapping.ours, kLines[_i].ours);
}

TEST(a_mapping_is_found_by_any_of_its_addresses) {
  Arena arena(8);
  arena.map(2, 4);
  Mapping mapping;
  for (size_t page = 2; page < 6; ++page) {
    ck_assert(find_mapping(reinterpret_cast<uintptr_t>(arena.at(page)), mapping));
    ck_assert(mapping.ours);
    ck_assert_uint_eq(mapping.range.start, reinterpret_cast<uintptr_t>(arena.at(2)));
    ck_assert_uint_eq(mapping.range.end, reinterpret_cast<uintptr_t>(arena.at(6)));
  }
  munmap(arena.at(4), page_bytes());
  ck_assert(!find_mapping(reinterpret_cast<uintptr_t>(arena.at(4)), mapping));
}

/// The state letter of the first thread of this process.
char state_of_first_thread() {
  std::string line;
  std::getline(std::ifstream("/proc/self/stat"), line);
  const size_t name_end = line.rfind(')');
  return name_end + 2 < line.size() ? line[name_end + 2] : '?';
}

/// /proc/self has no memory any more after pthread_exit(3) of the first thread.
TEST(a_mapping_is_found_after_the_first_thread_has_ended) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGALRM, SIG_DFL);
    alarm(10);
    std::thread([] {
      while (state_of_first_thread() != 'Z') sched_yield();
      Arena arena(1);
      arena.map(0, 1);
      Mapping mapping;
      const bool found = find_mapping(reinterpret_cast<uintptr_t>(arena.at(0)), mapping);
      _exit(found && mapping.ours ? 0 : 1);
    }).detach();
    syscall(SYS_exit, 0);  // as pthread_exit(3), but without unwinding the frames of the runner
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}

}  // namespace
