#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace erdma::test {

/// The state letter of a thread of this process in its folder below /proc/self/task; 0: there is no
/// such thread. qemu-user invents /proc/self/stat, but not the file that is read here.
inline char state_of_thread(const std::filesystem::path& folder) {
  std::string line;
  std::getline(std::ifstream(folder / "stat"), line);
  const size_t name_end = line.rfind(')');
  return name_end != line.npos && name_end + 2 < line.size() ? line[name_end + 2] : 0;
}

inline bool others_sleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    const char state = state_of_thread(task.path());
    if (state != 0 && state != 'S') return false;
  }
  return true;
}

/// Calls fork() while the other threads of this process sleep. AddressSanitizer does not unlock its
/// allocator in a child, unlike the C library. If another thread were in it, the child would hang
/// at its first allocation. All threads are checked twice, as the last running one may have woken
/// one that was asleep when it was checked.
inline pid_t quiet_fork() {
  for (int quiet = 0; quiet < 2; sched_yield()) quiet = others_sleep() ? quiet + 1 : 0;
  return fork();
}

/// True if `check` returns true in a child of quiet_fork(). A child that hangs ends after ten
/// seconds.
template <typename Check>
bool holds_in_child(Check check) {
  const pid_t child = quiet_fork();
  if (child == 0) {
    std::signal(SIGALRM, SIG_DFL);
    alarm(10);
    _exit(check() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// The same in a child whose first thread has ended.
template <typename Check>
bool holds_without_first_thread(Check check) {
  return holds_in_child([check] {
    std::thread([check] {
      const std::string first = "/proc/self/task/" + std::to_string(getpid());
      while (state_of_thread(first) != 'Z') sched_yield();
      _exit(check() ? 0 : 1);
    }).detach();
    syscall(SYS_exit, 0);  // as pthread_exit(3), but without unwinding the frames of the runner
    return false;
  });
}

}  // namespace erdma::test
