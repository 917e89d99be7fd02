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
#include <set>
#include <sstream>
#include <string_view>

#include "fi_erdma/descriptor.h"
#include "util/memory_file.h"

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

/// Calls `visit` with each entry whose name is a number, until `visit` returns false. Returns 0, or
/// the errno if the folder cannot be opened.
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

/// Adds the counters of its peers to those of an endpoint.
void add_peers(Snapshot& snapshot) {
  const BlockKind* const peers = snapshot.kind("peer");
  BlockKind* const endpoints = snapshot.kind("endpoint");
  if (!peers || !endpoints) return;
  std::map<uint64_t, Block*> by_index;
  for (Block& endpoint : endpoints->blocks) by_index[endpoint.index] = &endpoint;
  for (const Block& peer : peers->blocks) {
    const auto of = by_index.find(peer.number("endpoint").value_or(UINT64_MAX));
    if (of == by_index.end()) continue;
    for (const FieldInfo& field : peers->fields)
      if (uint64_t* const sum = of->second->numbers.find(field.name);
          sum && field.meaning == layout::Meaning::counter)
        *sum += peer.number(field.name).value_or(0);
  }
}

/// Takes the status from the kernel's cache, so that no driver or file server is called, whatever
/// the descriptor refers to.
bool ask(int fd, struct statx& status) {
  return !statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_NLINK, &status);
}

/// Empty if the file is a memfd, otherwise the reason. All memfds are on one device.
std::string why_no_memfd(int fd) {
  const Descriptor own(erdma::util::make_memory_file("fi_erdma"));
  struct statx found {
  }, ours{};
  if (own.get() < 0 || !ask(own.get(), ours) || !ask(fd, found)) return std::strerror(errno);
  const bool is_memfd = S_ISREG(found.stx_mode) && found.stx_nlink == 0 &&
                        found.stx_dev_major == ours.stx_dev_major &&
                        found.stx_dev_minor == ours.stx_dev_minor;
  return is_memfd ? "" : "the file is no memfd";
}

/// Opens and maps a page. Any process can create a file of this name, and opening a device or a
/// FIFO has side effects, so the kind of the file is checked before it is opened. Reading a file
/// that cannot shrink raises no SIGBUS. Reading parts of it that have no memory allocates memory,
/// for which this process is charged.
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
  const blkcnt_t before = status.st_blocks;
  if (!fstat(file.get(), &status) && status.st_blocks > before)
    page.memory = size_t(status.st_blocks - before) * 512;
  page.cost += page.memory;
  if (page.snapshot) add_peers(*page.snapshot);
  return page;
}

/// The words of /proc/PID/stat from the third one (the state) on. The second is the name of the
/// program in parentheses, which may contain any characters.
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

/// Words 14 and 15 of the file, in clock ticks.
double processor_seconds_of(const std::string& status) {
  std::istringstream words(status);
  std::string skipped;
  for (int i = 3; i < 14; ++i) words >> skipped;
  uint64_t user = 0, system = 0;
  words >> user >> system;
  return double(user + system) / double(sysconf(_SC_CLK_TCK));
}

/// Whether a program runs in it: it is no thread of the kernel and has not ended.
bool is_program(const std::string& status) {
  constexpr uint64_t kKernelThread = 0x00200000;
  std::istringstream words(status);
  std::string state, skipped;
  words >> state;
  for (int i = 4; i < 9; ++i) words >> skipped;
  uint64_t flags = 0;
  words >> flags;
  return !(flags & kKernelThread) && state != "Z" && state != "X";
}

/// The descriptors of a process that lead to pages, one of each page.
struct Pages {
  std::vector<std::string> paths;
  int failed = 0;  ///< errno if the descriptors cannot be read
};

Pages pages_in(const std::string& files) {
  constexpr size_t kMostPages = 16;
  Pages pages;
  std::set<uint64_t> inodes;
  pages.failed = for_each_number(files, [&](int fd) {
    const std::string path = files + std::to_string(fd);
    struct statx status {};
    if (leads_to_page(path) &&
        !statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_INO, &status) &&
        inodes.insert(status.stx_ino).second)
      pages.paths.push_back(path);
    return pages.paths.size() < kMostPages;
  });
  return pages;
}

/// Why /proc/PID/fd cannot be read.
std::string fault_of_folder(int error) {
  return error == ENOENT || error == ESRCH ? "there is no such process" : std::strerror(error);
}

struct Found {
  Process process;
  bool has_page = false;  ///< the page may be unreadable
  bool refused = false;   ///< a program that this user may not look into
};

/// `folder`: that of the process below /proc, with a / at its end.
Found look_at(const std::string& folder, pid_t pid, size_t& cost_left) {
  const std::string status = status_in(folder);
  Found found{{pid, status.empty() ? '\0' : status[0], {}, processor_seconds_of(status)}};
  ReadResult& result = found.process.page;
  const Pages pages = pages_in(folder + "fd/");
  for (const std::string& page : pages.paths) {
    if (result.snapshot) break;
    const size_t memory = result.memory;
    result = read_file(page, std::min(cost_left, kMostCost));
    cost_left -= std::min(result.cost, cost_left);
    result.memory += memory;
  }
  // The process may have ended, or closed its last endpoint, before the page was opened.
  found.has_page =
      result.snapshot || result.memory || std::ranges::any_of(pages.paths, leads_to_page);
  found.refused = (pages.failed == EACCES || pages.failed == EPERM) && is_program(status);
  if (result.snapshot) found.process.more_pages = unsigned(pages.paths.size() - 1);
  if (pages.failed)
    result.fault = fault_of_folder(pages.failed);
  else if (!found.has_page)
    result.fault =
        "it shows no statistics: it has no endpoint of erdma's now, or FI_ERDMA_STAT=off";
  return found;
}
Found look_at(pid_t pid, size_t& cost_left) {
  return look_at("/proc/" + std::to_string(pid) + "/", pid, cost_left);
}

}  // namespace

std::span<const Block> Process::blocks(std::string_view kind) const {
  return page.snapshot ? page.snapshot->blocks(kind) : std::span<const Block>();
}

const Block* Process::shown() const {
  return page.snapshot ? page.snapshot->process() : nullptr;
}

std::vector<Process> processes(unsigned* refused) {
  std::vector<Process> found;
  size_t cost_left = kMostCostOfAll;
  for_each_number("/proc", [&](int pid) {
    Found looked = look_at(pid, cost_left);
    if (refused) *refused += looked.refused;
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

/// The blocks of endpoints include those of their peers already.
std::map<std::string, uint64_t> counters_of(const Process& process) {
  std::map<std::string, uint64_t> sums;
  if (!process.page.snapshot) return sums;
  for (const char* const name : {"process", "endpoint"})
    if (const BlockKind* const kind = process.page.snapshot->kind(name))
      for (const FieldInfo& field : kind->fields)
        for (const Block& block : kind->blocks)
          if (field.meaning == layout::Meaning::counter)
            sums[field.name] += block.number(field.name).value_or(0);
  return sums;
}

}  // namespace fi_erdma
