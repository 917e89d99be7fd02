#pragma once

#include <sched.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace erdma::test {

inline bool others_sleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::string line;
    std::getline(std::ifstream(task.path() / "stat"), line);
    const size_t state = line.rfind(')');
    if (state != line.npos && line.compare(state, 3, ") S") != 0) return false;
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

}  // namespace erdma::test
