#include "fi_erdma/paper.h"

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "util/memory_file.h"

namespace fi_erdma {

Paper::Paper() : x_fd(erdma::util::make_memory_file("fi_erdma")) {
  if (fd() < 0) throw std::runtime_error(std::string("memfd_create: ") + std::strerror(errno));
}

void Paper::write(const std::string& text) const {
  size_t done = 0;
  if (ftruncate(fd(), 0)) return;
  while (done < text.size()) {
    const ssize_t wrote = pwrite(fd(), text.data() + done, text.size() - done, off_t(done));
    if (wrote <= 0) return;
    done += size_t(wrote);
  }
}

std::string Paper::read() const {
  std::string text;
  char part[4096];
  for (ssize_t got; (got = pread(fd(), part, sizeof(part), off_t(text.size()))) > 0;)
    text.append(part, size_t(got));
  return text;
}

std::vector<std::string> Paper::lines() const {
  std::vector<std::string> all;
  std::istringstream text(read());
  for (std::string line; std::getline(text, line);) all.push_back(line);
  return all;
}

void Paper::take_output() const {
  dup2(fd(), STDOUT_FILENO);
  dup2(fd(), STDERR_FILENO);
}

}  // namespace fi_erdma
