#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace erdma::test {

/// Captures standard error of this process during its lifetime. Each write(2) is one entry.
class CapturedStderr {
 public:
  CapturedStderr() {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends)) return;
    x_reader = ends[0];
    x_before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
  }
  ~CapturedStderr() {
    dup2(x_before, STDERR_FILENO);
    close(x_before);
    close(x_reader);
  }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;

  /// Returns the writes since the last call.
  std::vector<std::string> writes() const {
    std::vector<std::string> result;
    char bytes[8192];
    for (ssize_t got = 0; (got = recv(x_reader, bytes, sizeof(bytes), 0)) > 0;)
      result.emplace_back(bytes, size_t(got));
    return result;
  }
  /// Returns the only write since the last call; "" if none, "many writes" if several.
  std::string only_write() const {
    const std::vector<std::string> all = writes();
    return all.empty() ? "" : all.size() == 1 ? all[0] : "many writes";
  }

 private:
  int x_reader = -1, x_before = -1;
};

}  // namespace erdma::test
