#include "fi_erdma/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "fi_erdma/pages.h"
#include "libcheck.h"

using namespace erdma::test;
using fi_erdma::Process;

namespace {

/// A child that shows a page, and does nothing else until it is killed.
class Child {
 public:
  template <typename Show>
  explicit Child(Show show) {
    int ready[2];
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    x_pid = fork();
    if (x_pid == 0) {
      [[maybe_unused]] const auto shown = show();
      if (write(ready[1], "", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ready[1]);
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~Child() {
    kill(x_pid, SIGKILL);
    waitpid(x_pid, nullptr, 0);
  }
  pid_t pid() const { return x_pid; }
  void stop() {
    kill(x_pid, SIGSTOP);
    int status;
    ck_assert_int_eq(waitpid(x_pid, &status, WUNTRACED), x_pid);
    ck_assert(WIFSTOPPED(status));
  }

 private:
  pid_t x_pid;
};

auto shows_rank(uint64_t rank) {
  return [rank] {
    auto page = make_page();
    show_process(*page, rank);
    return page;
  };
}
int memfd(const char* name, size_t bytes, int seals) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(ftruncate(fd, off_t(bytes)), 0);
  if (seals) ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}
Process look_at(pid_t pid) {
  const pid_t pids[] = {pid};
  auto found = fi_erdma::processes(pids);
  ck_assert_uint_eq(found.size(), 1);
  ck_assert_int_eq(found[0].pid, pid);
  return std::move(found[0]);
}
void check_fault(pid_t pid, const char* why) {
  const Process process = look_at(pid);
  ck_assert(!process.page.snapshot);
  ck_assert_msg(process.page.fault.find(why) != std::string::npos, "%s",
                process.page.fault.c_str());
}

TEST(the_page_of_a_process_is_found_by_its_pid) {
  const Child child(shows_rank(11));
  const Process process = look_at(child.pid());
  ck_assert_msg(process.page.snapshot.has_value(), "%s", process.page.fault.c_str());
  ck_assert_uint_eq(*process.page.snapshot->process()->number("rank"), 11);
}

TEST(the_page_of_a_stopped_process_is_read_like_any_other) {
  Child child(shows_rank(12));
  child.stop();
  const Process process = look_at(child.pid());
  ck_assert_int_eq(process.state, 'T');
  ck_assert(process.page.snapshot.has_value());
  ck_assert_uint_eq(*process.page.snapshot->process()->number("rank"), 12);
}

TEST(all_processes_with_a_page_are_found_and_no_others) {
  const Child one(shows_rank(1)), other(shows_rank(2));
  const Child without([] { return 0; });
  const auto found = fi_erdma::processes();
  const auto shows = [&](pid_t pid) { return std::ranges::count(found, pid, &Process::pid); };
  ck_assert_int_eq(shows(one.pid()), 1);
  ck_assert_int_eq(shows(other.pid()), 1);
  ck_assert_int_eq(shows(without.pid()), 0);
  ck_assert(std::ranges::is_sorted(found, {}, &Process::pid));
}

TEST(why_a_process_has_no_page_is_told) {
  const Child without([] { return 0; });
  check_fault(without.pid(), "shows no statistics");
  pid_t ended;
  {
    const Child child([] { return 0; });
    ended = child.pid();
  }
  check_fault(ended, "no such process");
}

TEST(a_file_that_could_shrink_under_a_reader_is_refused) {
  const Child child([] { return memfd("erdma-stat", 4096, 0); });
  check_fault(child.pid(), "not sealed");
}

TEST(a_page_without_content_or_of_monstrous_size_is_refused) {
  const Child empty([] { return memfd("erdma-stat", 0, F_SEAL_SHRINK); });
  check_fault(empty.pid(), "no size");
  const Child large([] { return memfd("erdma-stat", size_t(1) << 40, F_SEAL_SHRINK); });
  check_fault(large.pid(), "no size");
}

TEST(a_memfd_of_another_name_is_no_page) {
  const Child child([] { return memfd("erdma-statistics", 4096, F_SEAL_SHRINK); });
  check_fault(child.pid(), "shows no statistics");
}

TEST(who_finds_a_page_can_only_read_it) {
  const Child child(shows_rank(1));
  std::string path = "/proc/" + std::to_string(child.pid()) + "/fd/";
  int fd = -1;
  for (int i = 0; i < 64 && fd < 0; ++i) {
    char target[64] = {};
    if (readlink((path + std::to_string(i)).c_str(), target, sizeof(target) - 1) > 0 &&
        std::string(target).starts_with("/memfd:erdma-stat"))
      fd = open((path + std::to_string(i)).c_str(), O_RDWR | O_CLOEXEC);
  }
  ck_assert_int_ge(fd, 0);
  if (!(fcntl(fd, F_GET_SEALS) & 0x10 /* F_SEAL_FUTURE_WRITE: Linux 5.1 */)) return;
  ck_assert_int_eq(write(fd, "x", 1), -1);
  ck_assert_ptr_eq(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  close(fd);
}

}  // namespace
