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
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

#include "fi_erdma/descriptor.h"

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

namespace fi_erdma {
namespace {

struct Close {
  void operator()(DIR* folder) const { closedir(folder); }
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
  constexpr std::string_view kFolder = "/memfd:", kDeleted = " (deleted)";
  std::string_view found(target, size_t(std::max<ssize_t>(length, 0)));
  if (found.ends_with(kDeleted)) found.remove_suffix(kDeleted.size());
  return found.starts_with(kFolder) && found.substr(kFolder.size()) == layout::kFileName;
}

/// Adds what an endpoint counts by peer to what it counts of none.
void add_peers(Snapshot& snapshot) {
  const BlockKind* const peers = snapshot.kind("peer");
  const auto is_endpoint = [](const BlockKind& kind) { return kind.name == "endpoint"; };
  const auto endpoints = std::ranges::find_if(snapshot.kinds, is_endpoint);
  if (!peers || endpoints == snapshot.kinds.end()) return;
  std::map<uint64_t, Block*> by_index;
  for (Block& endpoint : endpoints->blocks) by_index[endpoint.index] = &endpoint;
  for (const Block& peer : peers->blocks) {
    const auto of = by_index.find(peer.number("endpoint").value_or(UINT64_MAX));
    if (of == by_index.end()) continue;
    for (const FieldInfo& field : peers->fields)
      if (field.meaning == layout::Meaning::counter && of->second->numbers.contains(field.name))
        of->second->numbers[field.name] += peer.number(field.name).value_or(0);
  }
}

/// Without asking a driver, or the server of a file system, whatever the descriptor leads to.
bool ask(int fd, struct statx& status) {
  return !statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_NLINK, &status);
}

/// Empty if it is: all memfds are in one mount, which is the kernel's own.
std::string why_no_memfd(int fd) {
  const Descriptor own(memfd_create("fi_erdma", MFD_CLOEXEC));
  struct statx found {
  }, ours{};
  if (own.get() < 0 || !ask(own.get(), ours) || !ask(fd, found)) return std::strerror(errno);
  const bool is_memfd = S_ISREG(found.stx_mode) && found.stx_nlink == 0 &&
                        found.stx_dev_major == ours.stx_dev_major &&
                        found.stx_dev_minor == ours.stx_dev_minor;
  return is_memfd ? "" : "the file is no memfd";
}

/// A file of that name may be anyone's, and anything: to open a device or a FIFO would already be
/// felt by others, so the file is opened only when it is known what it is. One that can't shrink
/// raises no SIGBUS.
ReadResult read_file(const std::string& path, size_t most_cost) {
  const Descriptor found(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (found.get() < 0) return {std::nullopt, std::strerror(errno), 0};
  if (std::string fault = why_no_memfd(found.get()); !fault.empty())
    return {std::nullopt, fault, 0};
  const std::string same = "/proc/self/fd/" + std::to_string(found.get());
  const Descriptor file(open(same.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return {std::nullopt, std::strerror(errno), 0};
  struct stat status {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (fstat(file.get(), &status) || !S_ISREG(status.st_mode) || seals < 0 ||
      !(seals & F_SEAL_SHRINK))
    return {std::nullopt, "the file is not sealed", 0};
  if (status.st_size <= 0 || size_t(status.st_size) > layout::kMostBytes)
    return {std::nullopt, "the page has no size that a page can have", 0};
  const Mapping mapping(file.get(), size_t(status.st_size));
  if (!mapping) return {std::nullopt, std::strerror(errno), 0};
  ReadResult page = read_page(mapping.bytes(), most_cost);
  if (page.snapshot) add_peers(*page.snapshot);
  return page;
}

/// The words of /proc/PID/stat from the third on, the state; the second one is a name in
/// parentheses, which may hold any.
std::string status_in(const std::string& folder) {
  const Descriptor file(open((folder + "stat").c_str(), O_RDONLY | O_CLOEXEC));
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

/// Why /proc/PID/fd can't be read.
std::string fault_of_folder(int error) {
  return error == ENOENT || error == ESRCH ? "there is no such process" : std::strerror(error);
}

struct Found {
  Process process;
  bool has_page = false;  ///< perhaps one that can't be read
};

/// By the folder of the process, with a / at its end.
Found look_at(const std::string& folder, pid_t pid, size_t& cost_left) {
  const std::string status = status_in(folder);
  Found found{{pid, status.empty() ? '\0' : status[0], {}, processor_seconds_of(status)}};
  ReadResult& result = found.process.page;
  const std::string files = folder + "fd/";
  std::string page;
  const int failed = for_each_number(files, [&](int fd) {
    const std::string path = files + std::to_string(fd);
    if (leads_to_page(path)) page = path;
    return page.empty();
  });
  if (!page.empty()) result = read_file(page, std::min(cost_left, kMostCost));
  cost_left -= std::min(result.cost, cost_left);
  // The process may have ended, or closed its last endpoint, before the page was opened.
  found.has_page = result.snapshot || (!page.empty() && leads_to_page(page));
  if (failed)
    result.fault = fault_of_folder(failed);
  else if (!found.has_page)
    result.fault =
        "it shows no statistics: it has no endpoint of erdma's now, or FI_ERDMA_STAT=off";
  return found;
}
Found look_at(pid_t pid, size_t& cost_left) {
  return look_at("/proc/" + std::to_string(pid) + "/", pid, cost_left);
}

}  // namespace

std::vector<Process> processes() {
  std::vector<Process> found;
  size_t cost_left = kMostCostOfAll;
  for_each_number("/proc", [&](int pid) {
    Found looked = look_at(pid, cost_left);
    if (looked.has_page) found.push_back(std::move(looked.process));
    return true;
  });
  std::ranges::sort(found, {}, &Process::pid);
  return found;
}

std::vector<Process> processes(std::span<const pid_t> pids, size_t most_cost) {
  std::vector<Process> found;
  for (const pid_t pid : pids) found.push_back(look_at(pid, most_cost).process);
  return found;
}

Process this_process() {
  size_t cost_left = kMostCost;
  return look_at("/proc/self/", getpid(), cost_left).process;
}

}  // namespace fi_erdma
