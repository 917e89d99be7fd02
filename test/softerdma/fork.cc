// Effects of a fork on registered memory.
#include "softerdma/fork.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "softerdma/process.h"

using namespace softerdma;

namespace {

using Range = std::pair<uintptr_t, uintptr_t>;

/// Counts the registrations of each address as libibverbs does, including its bug: if memory was
/// unmapped before its deregistration, madvise fails, and the count stays too high.
class Counts {
 public:
  int change(Range range, int by) {
    split(range.first);
    split(range.second);
    for (auto at = x_counts.find(range.first); at->first < range.second; ++at) {
      at->second += by;
      if (at->second != (by > 0 ? 1 : 0) || advise(at, by)) continue;
      const int error = errno;
      for (auto back = at;; --back) {
        back->second -= by;
        if (back != at && back->second == (by > 0 ? 0 : 1)) advise(back, -by);
        if (back->first == range.first) return error;
      }
    }
    return 0;
  }

 private:
  using Place = std::map<uintptr_t, int>::iterator;
  void split(uintptr_t at) {
    const auto after = x_counts.upper_bound(at);
    x_counts.emplace(at, std::prev(after)->second);
  }
  static bool advise(Place at, int by) {
    void* const start = reinterpret_cast<void*>(at->first);  // NOLINT(performance-no-int-to-ptr)
    return madvise(start, std::next(at)->first - at->first, by > 0 ? MADV_DONTFORK : MADV_DOFORK) ==
           0;
  }
  std::map<uintptr_t, int> x_counts{{0, 0}, {UINTPTR_MAX, 0}};
};

std::mutex g_counts_mutex;
Counts* g_counts = nullptr;  ///< null: not initialised
bool g_too_late = false;     ///< memory was registered before

int count_range(void* address, size_t length, int by) {
  if (copies_on_fork()) return 0;
  std::lock_guard guard(g_counts_mutex);
  if (g_counts == nullptr) {
    g_too_late = true;
    return 0;
  }
  const uintptr_t mask = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1;
  const auto start = reinterpret_cast<uintptr_t>(address);
  if (length == 0) return 0;
  return g_counts->change({start & ~mask, (start + length + mask) & ~mask}, by);
}

/// Returns the mappings that a child gets a copy of.
std::vector<Range> inherited_mappings() {
  std::vector<Range> result;
  FILE* file = std::fopen("/proc/self/smaps", "re");
  char line[512];
  Range range;
  char rights[5] = "";
  while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) {
    unsigned long start = 0, end = 0;
    char its_rights[5] = "";
    if (std::sscanf(line, "%lx-%lx %4s", &start, &end, its_rights) == 3) {
      range = {start, end};
      std::memcpy(rights, its_rights, sizeof rights);
      continue;
    }
    if (std::strncmp(line, "VmFlags:", 8) != 0 || rights[3] != 'p') continue;
    if (std::strstr(line, " dc") == nullptr) result.push_back(range);
  }
  if (file != nullptr) std::fclose(file);
  return result;
}

/// Gives the adapter a private copy of the pages, which neither process has.
void divert(Process& process, uint32_t index, MrEntry& entry) {
  const size_t length = entry.length;
  void* pages = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return;
  madvise(pages, length, MADV_DONTFORK);
  process.self()->read(pages, entry.address, length);
  entry.address = reinterpret_cast<uint64_t>(pages);
  process.diverted[index] = {pages, length};
}

}  // namespace

namespace softerdma {

bool copies_on_fork() noexcept {
  const char* text = std::getenv("SOFTERDMA_COPY_ON_FORK");
  return text == nullptr || std::strcmp(text, "0") != 0;
}

int keep_from_children(void* address, size_t length) {
  return count_range(address, length, 1);
}

void give_to_children(void* address, size_t length) {
  static_cast<void>(count_range(address, length, -1));
}

void part_from_children(Process& process) {
  if (copies_on_fork()) return;
  std::lock_guard guard(process.mutex);
  const std::vector<Range> shared = inherited_mappings();
  for (uint32_t index = 1; index <= process.used_mrs; ++index) {
    MrEntry& entry = process.mrs.as<MrEntry>()[index];
    if (entry.key.load() == 0 || entry.address != entry.iova) continue;
    for (const Range& range : shared) {
      if (entry.address >= range.second || entry.address + entry.length <= range.first) continue;
      divert(process, index, entry);
      break;
    }
  }
}

}  // namespace softerdma

SOFTERDMA_API int ibv_fork_init() {
  if (copies_on_fork()) return 0;
  std::lock_guard guard(g_counts_mutex);
  if (g_counts != nullptr) return 0;
  if (g_too_late) return EINVAL;
  g_counts = new Counts;
  return 0;
}
SOFTERDMA_API ibv_fork_status ibv_is_fork_initialized() {
  if (copies_on_fork()) return IBV_FORK_UNNEEDED;
  std::lock_guard guard(g_counts_mutex);
  return g_counts != nullptr ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}
SOFTERDMA_API int ibv_dontfork_range(void* address, size_t length) {
  return keep_from_children(address, length);
}
SOFTERDMA_API int ibv_dofork_range(void* address, size_t length) {
  give_to_children(address, length);
  return 0;
}
