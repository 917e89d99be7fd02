#include "fi_erdma/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

namespace fi_erdma {
namespace {

struct Close {
  void operator()(DIR* folder) const { closedir(folder); }
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : x_fd(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (x_fd >= 0) close(x_fd);
  }
  int get() const { return x_fd; }

 private:
  int x_fd;
};

class Mapping {
 public:
  Mapping(int fd, size_t bytes)
      : x_base(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0)), x_bytes(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (*this) munmap(x_base, x_bytes);
  }
  explicit operator bool() const { return x_base != MAP_FAILED; }
  std::span<const std::byte> bytes() const { return {static_cast<std::byte*>(x_base), x_bytes}; }

 private:
  void* x_base;
  size_t x_bytes;
};

/// Calls `visit` with the name of each entry that is a number, until it returns false. Returns 0,
/// or the errno of a folder that can't be opened.
int for_each_number(const std::string& path, const std::function<bool(int)>& visit) {
  const std::unique_ptr<DIR, Close> folder(opendir(path.c_str()));
  if (!folder) return errno;
  while (const dirent* const entry = readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc{} && end == name.data() + name.size() && !visit(number)) break;
  }
  return 0;
}

bool leads_to_page(const std::string& path) {
  char target[64];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target));
  const std::string wanted = std::string("/memfd:") + layout::kFileName;
  const std::string_view found(target, size_t(std::max<ssize_t>(length, 0)));
  return found == wanted || found == wanted + " (deleted)";
}

/// A file of that name may be anyone's. One that can't shrink raises no SIGBUS.
ReadResult read_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return {std::nullopt, std::strerror(errno)};
  struct stat status {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &status) || !S_ISREG(status.st_mode) || seals < 0 ||
      !(seals & F_SEAL_SHRINK))
    return {std::nullopt, "the file is not sealed"};
  if (status.st_size <= 0 || size_t(status.st_size) > layout::kMostBytes)
    return {std::nullopt, "the page has no size that a page can have"};
  const Mapping mapping(file.get(), size_t(status.st_size));
  if (!mapping) return {std::nullopt, std::strerror(errno)};
  return read_page(mapping.bytes());
}

/// The words of /proc/PID/stat from the third on, the state; the second one is a name in
/// parentheses, which may hold any.
std::string status_of(pid_t pid) {
  const Descriptor file(
      open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t length = file.get() < 0 ? -1 : read(file.get(), text, sizeof(text));
  const std::string_view line(text, size_t(std::max<ssize_t>(length, 0)));
  const size_t name_end = line.rfind(')');
  return name_end != line.npos && name_end + 2 < line.size()
             ? std::string(line.substr(name_end + 2))
             : std::string();
}

/// The words 14 and 15 of the file, in ticks.
double processor_seconds_of(const std::string& status) {
  std::istringstream words(status);
  std::string skipped;
  for (int i = 3; i < 14; ++i) words >> skipped;
  uint64_t user = 0, system = 0;
  words >> user >> system;
  return double(user + system) / double(sysconf(_SC_CLK_TCK));
}

/// Nothing where the process shows no page; `fault` is then why, if that is not simply so.
std::optional<Process> look_at(pid_t pid, std::string& fault) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  std::string page;
  const int failed = for_each_number(folder, [&](int fd) {
    const std::string path = folder + std::to_string(fd);
    if (leads_to_page(path)) page = path;
    return page.empty();
  });
  if (failed == ENOENT)
    fault = "there is no such process";
  else if (failed)
    fault = std::strerror(failed);
  else if (page.empty())
    fault = "it shows no statistics: it has no endpoint of erdma's now, or FI_ERDMA_STAT=off";
  if (!fault.empty()) return std::nullopt;
  const std::string status = status_of(pid);
  return Process{pid, status.empty() ? '\0' : status[0], read_file(page),
                 processor_seconds_of(status)};
}

}  // namespace

std::vector<Process> processes() {
  std::vector<Process> found;
  for_each_number("/proc", [&](int pid) {
    std::string fault;
    if (auto process = look_at(pid, fault)) found.push_back(std::move(*process));
    return true;
  });
  std::ranges::sort(found, {}, &Process::pid);
  return found;
}

std::vector<Process> processes(std::span<const pid_t> pids) {
  std::vector<Process> found;
  for (const pid_t pid : pids) {
    std::string fault;
    auto process = look_at(pid, fault);
    found.push_back(process ? std::move(*process) : Process{pid, 0, {std::nullopt, fault}, 0});
  }
  return found;
}

}  // namespace fi_erdma
