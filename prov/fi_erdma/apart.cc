#include "fi_erdma/apart.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>

namespace fi_erdma {
namespace {

constexpr int kLongestSeconds = 60;

/// Memory that the child fills.
class Paper {
 public:
  Paper() : x_fd(memfd_create("fi_erdma", MFD_CLOEXEC)) {
    if (x_fd < 0) throw std::runtime_error(std::string("memfd_create: ") + std::strerror(errno));
  }
  Paper(const Paper&) = delete;
  Paper& operator=(const Paper&) = delete;
  ~Paper() { close(x_fd); }
  int fd() const { return x_fd; }

  void write(const std::string& text) const {
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t wrote = pwrite(x_fd, text.data() + done, text.size() - done, off_t(done));
      if (wrote <= 0) return;
      done += size_t(wrote);
    }
  }
  std::string read() const {
    std::string text;
    char part[4096];
    for (ssize_t got; (got = pread(x_fd, part, sizeof(part), off_t(text.size()))) > 0;)
      text.append(part, size_t(got));
    return text;
  }

 private:
  int x_fd;
};

[[noreturn]] void work_as_child(const Variables& variables, const std::function<Json()>& work,
                                const Paper& result, const Paper& said) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(said.fd(), STDERR_FILENO);
  for (const auto& [name, value] : variables)
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  try {
    result.write(work().dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

/// Until the child is gone, which closes the other end of the pipe. False: it does not end. Second
/// by second, since time in which both stand still does not count.
bool wait_for(int pipe) {
  pollfd end{pipe, POLLIN, 0};
  for (int seconds = 0; seconds < kLongestSeconds; ++seconds)
    if (poll(&end, 1, 1000) > 0) return true;
  return false;
}

std::string fault_of(int status, bool ended) {
  if (!ended) return "it did not end within a minute";
  if (WIFSIGNALED(status))
    return std::string("it was ended by a signal: ") + strsignal(WTERMSIG(status));
  return WEXITSTATUS(status) ? "it failed" : "";
}

}  // namespace

Outcome try_apart(const Variables& variables, const std::function<Json()>& work) {
  const Paper result, said;
  int ends[2];
  if (pipe(ends)) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    work_as_child(variables, work, result, said);
  }
  close(ends[1]);
  const bool ended = child > 0 && wait_for(ends[0]);
  close(ends[0]);
  if (child < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome{fault_of(status, ended), nullptr, {}};
  std::istringstream lines(said.read());
  for (std::string line; std::getline(lines, line);) outcome.said.push_back(line);
  if (outcome.fault.empty()) outcome.result = Json::parse(result.read(), nullptr, false);
  return outcome;
}

}  // namespace fi_erdma
