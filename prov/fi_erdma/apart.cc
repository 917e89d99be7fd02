#include "fi_erdma/apart.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "fi_erdma/paper.h"

namespace fi_erdma {
namespace {

constexpr int kLongestDeathSeconds = 5;
constexpr int kLooksPerSecond = 10;  ///< if the kernel has no pidfd to report the end of a process

const Paper* g_result = nullptr;  ///< where a child writes its result

[[noreturn]] void work_as_child(const Variables& variables, const std::function<Json()>& work,
                                const Paper& result, const Paper& said) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  g_result = &result;
  // Libraries may print to both streams; standard output is reserved for the report.
  said.take_output();
  for (const auto& [name, value] : variables)
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  try {
    end_trial(work());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::fflush(nullptr);
    _exit(1);
  }
}

/// A child process that has not been waited for yet.
class Child {
 public:
  explicit Child(pid_t pid) : x_pid(pid), x_fd(int(syscall(SYS_pidfd_open, pid, 0))) {}

  /// Empty if the child ended by itself with status 0.
  std::string fault(int longest_seconds) {
    if (ends_within(longest_seconds)) return fault_of_status();
    kill(x_pid, SIGKILL);
    return ends_within(kLongestDeathSeconds)
               ? "it did not end in " + std::to_string(longest_seconds) + " s"
               : std::string("it can't be ended: it stands in the kernel");
  }

 private:
  /// Waits in steps, so that time in which this process was stopped as well does not count. Without
  /// a descriptor, poll() only sleeps.
  bool ends_within(int seconds) {
    for (int i = 0; i < seconds * kLooksPerSecond; ++i) {
      const pid_t ended = waitpid(x_pid, &x_status, WNOHANG);
      x_unknown = ended < 0 && errno != EINTR ? errno : 0;
      if (ended == x_pid || x_unknown) return true;
      pollfd end{x_fd.get(), POLLIN, 0};
      poll(&end, 1, 1000 / kLooksPerSecond);
    }
    return false;
  }
  std::string fault_of_status() const {
    if (x_unknown) return std::string("how it ended can't be known: ") + std::strerror(x_unknown);
    if (WIFSIGNALED(x_status))
      return std::string("it was ended by a signal: ") + strsignal(WTERMSIG(x_status));
    return WEXITSTATUS(x_status) ? "it failed" : "";
  }

  const pid_t x_pid;
  const Descriptor x_fd;  ///< none if the kernel has no pidfd
  int x_status = 0;
  int x_unknown = 0;  ///< errno if the status is not known
};

}  // namespace

void end_trial(const Json& result) {
  g_result->write(one_line(result));
  std::fflush(nullptr);
  _exit(0);
}

Outcome try_apart(const Variables& variables, const std::function<Json()>& work,
                  int longest_seconds) {
  const Paper result, said;
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) work_as_child(variables, work, result, said);
  if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  Child child(pid);
  Outcome outcome{child.fault(longest_seconds), nullptr, {}};
  outcome.said = said.lines();
  if (!outcome.fault.empty()) return outcome;
  outcome.result = object_in(result.read());
  if (outcome.result.is_null()) outcome.fault = "it told nothing";
  return outcome;
}

std::string trouble_of(const Outcome& outcome) {
  if (!outcome.fault.empty()) return outcome.fault;
  if (!outcome.result.contains("error")) return {};
  const std::string step = outcome.result.value("step", "");
  return (step.empty() ? "" : step + ": ") + outcome.result["error"].get<std::string>();
}

}  // namespace fi_erdma
