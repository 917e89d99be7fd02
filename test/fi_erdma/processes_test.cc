#include "fi_erdma/processes.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "fi_erdma/pages.h"
#include "fi_erdma/spoiler.h"
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

std::string link_to_page(pid_t pid) {
  for (int fd = 0; fd < 64; ++fd) {
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
    char target[64] = {};
    if (readlink(path.c_str(), target, sizeof(target) - 1) > 0 &&
        std::string(target).starts_with("/memfd:erdma-stat"))
      return path;
  }
  return {};
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

// Two copies of the provider in one process.
TEST(further_pages_of_a_process_are_counted) {
  const Child one(shows_rank(11));
  ck_assert_uint_eq(look_at(one.pid()).more_pages, 0);
  const Child two([] { return std::pair(shows_rank(11)(), shows_rank(12)()); });
  const Process process = look_at(two.pid());
  ck_assert_uint_eq(process.more_pages, 1);
  ck_assert(process.page.snapshot.has_value());
}

TEST(a_page_of_which_there_are_two_descriptors_is_one) {
  const Child child([] {
    auto page = shows_rank(11)();
    const std::string link = link_to_page(getpid());
    ck_assert_int_ge(dup(std::stoi(link.substr(link.rfind('/') + 1))), 0);
    return page;
  });
  ck_assert_uint_eq(look_at(child.pid()).more_pages, 0);
}

TEST(a_page_that_cannot_be_read_hides_no_other) {
  const Child child([] {
    const int first = memfd("erdma-stat", 4096, 0);
    return std::pair(first, shows_rank(12)());
  });
  const Process process = look_at(child.pid());
  ck_assert_msg(process.page.snapshot.has_value(), "%s", process.page.fault.c_str());
  ck_assert_uint_eq(*process.page.snapshot->process()->number("rank"), 12);
  ck_assert_uint_eq(process.more_pages, 1);
}

TEST(programs_that_may_not_be_looked_at_are_counted) {
  if (geteuid() != 0) {
    std::puts("skipped: only root can run as another user");
    return;
  }
  const Child root_s([] { return 0; });
  unsigned refused = 0;
  (void)fi_erdma::processes(&refused);
  const unsigned of_root = refused;
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setgid(65534) || setuid(65534)) _exit(2);
    refused = 0;
    (void)fi_erdma::processes(&refused);
    _exit(refused > of_root ? 0 : 1);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(stranger, &status, 0), stranger);
  ck_assert_int_eq(status, 0);
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

/// An empty folder, to the end of the test.
struct Folder {
  Folder() { ck_assert_ptr_nonnull(mkdtemp(path)); }
  ~Folder() { rmdir(path); }
  char path[32] = "/tmp/fi_erdma-XXXXXX";
};

/// From here on this process alone has a file system of its own at `folder`. False: the kernel does
/// not permit that here.
bool mount_apart(const char* folder) {
  return (!unshare(CLONE_NEWNS) || !unshare(CLONE_NEWUSER | CLONE_NEWNS)) &&
         !mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) &&
         !mount("none", folder, "tmpfs", 0, nullptr);
}
bool may_mount_apart(const char* folder) {
  const pid_t child = fork();
  if (child == 0) _exit(mount_apart(folder) ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

bool put(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return bool(file);
}
/// A new user namespace knows nobody, and whom it does not know makes no files in it.
bool name_user(uid_t user, gid_t group) {
  if (std::ifstream("/proc/self/uid_map").peek() != EOF) return true;
  const auto itself = [](unsigned id) {
    return std::to_string(id) + " " + std::to_string(id) + " 1";
  };
  return put("/proc/self/setgroups", "deny") && put("/proc/self/uid_map", itself(user)) &&
         put("/proc/self/gid_map", itself(group));
}

/// A FIFO to which the links in /proc lead as to a page: it lies at the root of a mount that is no
/// longer below any other.
int fifo_like_a_page(const char* folder) {
  const uid_t user = getuid();
  const gid_t group = getgid();
  const std::string fifo = std::string(folder) + "/memfd:erdma-stat";
  if (!mount_apart(folder) || !name_user(user, group) || mkfifo(fifo.c_str(), 0600)) _exit(1);
  const int fd = open(fifo.c_str(), O_PATH | O_CLOEXEC);
  if (fd < 0 || umount2(folder, MNT_DETACH)) _exit(1);
  return fd;
}
void wait_until_it_sleeps(pid_t pid) {
  for (std::string line; line.find(") S ") == line.npos && line.find(") Z ") == line.npos;
       sched_yield()) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::getline(file, line);
  }
}

// Whoever opens a device or a FIFO is felt by its driver, or its writer.
TEST(a_file_that_is_no_memfd_is_not_even_opened) {
  const Folder folder;
  if (!may_mount_apart(folder.path)) {
    std::puts("skipped: the kernel permits no mount namespace");
    return;
  }
  const Child child([&] { return fifo_like_a_page(folder.path); });
  const std::string link = link_to_page(child.pid());
  ck_assert(!link.empty());
  const pid_t writer = fork();
  if (writer == 0) {
    struct sigaction interrupt {};
    interrupt.sa_handler = [](int) {};
    sigaction(SIGUSR1, &interrupt, nullptr);
    _exit(open(link.c_str(), O_WRONLY) >= 0 ? 1 : errno == EINTR ? 0 : 2);
  }
  wait_until_it_sleeps(writer);
  check_fault(child.pid(), "no memfd");
  kill(writer, SIGUSR1);
  int status = 0;
  ck_assert_int_eq(waitpid(writer, &status, 0), writer);
  ck_assert_int_eq(status, 0);
}

/// Opens and closes its page, and its endpoints, until it is killed.
[[noreturn]] void keep_changing(int ready) {
  for (bool first = true;; first = false) {
    const auto page = make_page();
    ShownProcess& process = show_process(*page, 11);
    for (int i = 0; i < 8; ++i) {
      ShownEndpoint& endpoint = show_endpoint(*page, "10.0.0.1:1");
      if (first && i == 0 && write(ready, "", 1) != 1) _exit(1);
      erdma::util::StatPage::begin_change(block_of(process));
      endpoint.bytes = 7;
      page->give_back(block_of(endpoint));
      erdma::util::StatPage::end_change(block_of(process));
    }
  }
}

/// Kills a process after a while; the end of the thread tells that it did.
std::thread killer(pid_t pid, std::chrono::microseconds after) {
  return std::thread([=] {
    std::this_thread::sleep_for(after);
    kill(pid, SIGKILL);
  });
}

void check_either(const Process& process) {
  ck_assert(process.page.snapshot.has_value() == process.page.fault.empty());
  if (!process.page.snapshot) return;
  if (const auto* const shown = process.page.snapshot->process())
    ck_assert_uint_eq(shown->number("rank").value(), 11);
  const auto* const endpoints = process.page.snapshot->kind("endpoint");
  ck_assert_ptr_nonnull(endpoints);
  for (const auto& endpoint : endpoints->blocks)
    ck_assert(endpoint.text("address") == "10.0.0.1:1");
}

TEST(a_process_that_is_killed_while_it_is_looked_at_gives_a_page_or_a_fault) {
  const uint64_t seed = number_from("ERDMA_FUZZ_SEED", uint64_t(time(nullptr)));
  std::printf("ERDMA_FUZZ_SEED=%llu\n", (unsigned long long)seed);
  Spoiler random(seed);
  for (int i = 0; i < 200; ++i) {
    int ready[2];
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) keep_changing(ready[1]);
    close(ready[1]);
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    std::thread kills = killer(pid, std::chrono::microseconds(random.below(2000)));
    Process last;
    do {
      last = look_at(pid);
      check_either(last);
    } while (last.state != 'Z');
    kills.join();
    // Nobody has asked for its status yet, and its descriptors are closed.
    ck_assert(!last.page.snapshot || !look_at(pid).page.snapshot);
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    check_fault(pid, "there is no such process");
  }
}

TEST(all_pages_together_keep_no_more_than_they_may) {
  const Child one(shows_rank(1)), other(shows_rank(2));
  const pid_t pids[] = {one.pid(), other.pid()};
  const size_t cost = look_at(one.pid()).page.cost;
  ck_assert_uint_gt(cost, 0);
  const auto both = fi_erdma::processes(pids, 2 * cost);
  ck_assert(both[0].page.snapshot && both[1].page.snapshot);
  const auto found = fi_erdma::processes(pids, 2 * cost - 1);
  ck_assert(found[0].page.snapshot && !found[1].page.snapshot);
  ck_assert(found[1].page.fault.find("all processes together") != std::string::npos);
}

/// A page without memory for its blocks, each of which begins in a page of memory of its own.
auto shows_holes(uint32_t blocks) {
  return [blocks] {
    Copy copy(*make_page());
    const size_t tables = size_t(copy.kind(0).offset), bytes = tables + size_t(blocks) * 4096;
    copy.header().bytes = bytes;
    copy.kind(0).block_bytes = 4096;
    copy.kind(0).capacity = copy.kind(0).used = blocks;
    copy.kind(1).capacity = copy.kind(1).used = 0;
    const int fd = memfd("erdma-stat", bytes, 0);
    ck_assert_int_eq(pwrite(fd, copy.data(), tables, 0), ssize_t(tables));
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
  };
}

TEST(memory_that_reading_a_page_allocates_is_part_of_its_cost) {
  constexpr uint32_t kBlocks = 4096;
  const Child one(shows_holes(kBlocks)), other(shows_holes(kBlocks));
  const pid_t pids[] = {one.pid(), other.pid()};
  const auto found = fi_erdma::processes(pids, size_t(kBlocks) * 4096);
  ck_assert_msg(found[0].page.snapshot.has_value(), "%s", found[0].page.fault.c_str());
  ck_assert_uint_ge(found[0].page.cost, size_t(kBlocks) * 4096);
  // The tables and the first block are in the same page of memory, which is there already.
  constexpr size_t kLeast = size_t(kBlocks - 1) * 4096;
  ck_assert_uint_ge(found[0].page.memory, kLeast);
  ck_assert(found[1].page.fault.find("all processes together") != std::string::npos);
  ck_assert_uint_eq(found[1].page.cost, 0);
  // What was read has its memory now.
  const auto memory_of_reading = [](pid_t pid) {
    return fi_erdma::processes(std::span(&pid, 1))[0].page.memory;
  };
  ck_assert_uint_eq(memory_of_reading(one.pid()), 0);
  ck_assert_uint_ge(memory_of_reading(other.pid()), kLeast);
}

TEST(a_memfd_of_another_name_is_no_page) {
  const Child child([] { return memfd("erdma-statistics", 4096, F_SEAL_SHRINK); });
  check_fault(child.pid(), "shows no statistics");
}

TEST(who_finds_a_page_can_only_read_it) {
  const Child child(shows_rank(1));
  const int fd = open(link_to_page(child.pid()).c_str(), O_RDWR | O_CLOEXEC);
  ck_assert_int_ge(fd, 0);
  constexpr int kFutureWrite = 0x10;  // F_SEAL_FUTURE_WRITE: Linux 5.1
  const int own = memfd("own", 4096, 0);
  const bool known = fcntl(own, F_ADD_SEALS, kFutureWrite) == 0;
  close(own);
  ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & kFutureWrite, known ? kFutureWrite : 0);
  if (!known) {
    close(fd);
    return;
  }
  ck_assert_int_eq(write(fd, "x", 1), -1);
  ck_assert_ptr_eq(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  close(fd);
}

}  // namespace
