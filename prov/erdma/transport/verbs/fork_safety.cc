#include "transport/verbs/fork_safety.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

#include "transport/verbs/device_list.h"
#include "transport/verbs/handles.h"
#include "transport/verbs/memory_map.h"
#include "transport/verbs/newer_rdma_core.h"
#include "transport/verbs/registration_cache.h"
#include "util/fd.h"
#include "util/lock.h"
#include "util/log.h"

// Functions of libibverbs that it declares only for drivers.
extern "C" int ibv_dontfork_range(void* address, size_t length);
extern "C" int ibv_dofork_range(void* address, size_t length);

namespace erdma::transport::verbs {
namespace {

/// Looks at the PCI vendors of the RDMA devices, without a call of libibverbs.
bool has_erdma_device() noexcept {
  glob_t files{};
  bool found = false;
  if (!::glob("/sys/class/infiniband/*/device/vendor", GLOB_NOSORT, nullptr, &files)) {
    for (size_t i = 0; i < files.gl_pathc && !found; ++i) {
      char vendor[16] = "";
      const util::Fd file(::open(files.gl_pathv[i], O_RDONLY | O_CLOEXEC));
      found = file && ::read(file.get(), vendor, sizeof(vendor) - 1) > 0 &&
              std::strtoul(vendor, nullptr, 16) == kErdmaVendor;
    }
  }
  ::globfree(&files);
  return found;
}

/// How many registrations of the provider hold each page.
class Holds {
 public:
  /// May throw std::bad_alloc; then no count has changed.
  void add(const MemoryRange& pages) {
    change(pages, 1, [](const MemoryRange&) {});
  }
  /// Calls free(range) for each part that is not held any more. May throw likewise.
  template <typename Free>
  void remove(const MemoryRange& pages, Free&& free) {
    change(pages, -1, free);
  }

 private:
  template <typename Free>
  void change(const MemoryRange& pages, int by, Free&& free) {
    split(pages.start);
    split(pages.end);
    const auto end = x_counts.find(pages.end);
    for (auto at = x_counts.find(pages.start); at != end; ++at) {
      if (by < 0 && at->second == 0) continue;
      at->second = unsigned(int(at->second) + by);
      if (at->second == 0) free(MemoryRange{at->first, std::next(at)->first});
    }
    merge(pages.end);
    merge(pages.start);
  }
  void split(uintptr_t at) {
    const auto after = x_counts.upper_bound(at);
    x_counts.emplace(at, std::prev(after)->second);
  }
  void merge(uintptr_t at) noexcept {
    const auto found = x_counts.find(at);
    if (found != x_counts.begin() && std::prev(found)->second == found->second)
      x_counts.erase(found);
  }

  std::map<uintptr_t, unsigned> x_counts{{0, 0}};  ///< from this address to the next one
};

util::EpochLock g_holds_lock;

/// Those of this process: a child has no registrations, and may lack the memory of the parent's
/// object. May throw std::bad_alloc. g_holds_lock is held.
Holds& holds() {
  static Holds* mine = nullptr;
  static uint32_t epoch = 0;
  if (!mine || epoch != util::process_epoch()) {
    mine = new Holds;
    epoch = util::process_epoch();
  }
  return *mine;
}

/// Returns whether there was memory for it.
bool hold(const MemoryRange& pages) noexcept try {
  const std::lock_guard guard(g_holds_lock);
  holds().add(pages);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

/// Gives children those pages of a range again that no registration holds, as libibverbs counts.
/// libibverbs marks no range with a hole, so such a range is tried in halves, cut where huge pages
/// may begin. `tries` limits the attempts, because a range may have no pages at all.
void let_children_have(const MemoryRange& pages, unsigned& tries) noexcept {
  if (tries == 0) return;
  --tries;
  void* const start = reinterpret_cast<void*>(pages.start);
  if (!::ibv_dontfork_range(start, pages.bytes())) {
    (void)::ibv_dofork_range(start, pages.bytes());
    return;
  }
  if (pages.bytes() <= size_t(::sysconf(_SC_PAGESIZE))) return;
  // The address between both ends with the most trailing zeros.
  const uintptr_t highest = std::bit_floor(pages.start ^ (pages.end - 1));
  const uintptr_t cut = (pages.end - 1) & ~(highest - 1);
  let_children_have({pages.start, cut}, tries);
  let_children_have({cut, pages.end}, tries);
}

/// rdma-core before 35 does not tell; then memory is excluded from children even where that is not
/// needed.
bool kernel_copies_for_children() noexcept {
#ifdef HAVE_IBV_IS_FORK_INITIALIZED
  return ibv_is_fork_initialized() == IBV_FORK_UNNEEDED;
#else
  constexpr int kForkUnneeded = 2;  // IBV_FORK_UNNEEDED
  auto* const call = of_newer_rdma_core<int()>("ibv_is_fork_initialized");
  return call && call() == kForkUnneeded;
#endif
}

}  // namespace

void prepare_for_forks_early() noexcept {
  const char* const provider = std::getenv("FI_PROVIDER");
  const char* const policy = std::getenv("FI_ERDMA_FORK");
  const bool asked = provider ? std::strstr(provider, "erdma") && provider[0] != '^'
                              : std::getenv("FI_ERDMA_DEVICE") || has_erdma_device();
  if (!asked || (policy && !std::strcmp(policy, "unsafe"))) return;
  (void)prepare_for_forks(ForkPolicy::automatic);
}

ForkSafety prepare_for_forks(ForkPolicy policy) noexcept {
  static util::EpochLock lock;  // libibverbs has none for this
  if (policy == ForkPolicy::unsafe) return ForkSafety::unasked;
  const std::lock_guard guard(lock);
  if (kernel_copies_for_children()) return ForkSafety::kernel;
  return ibv_fork_init() == 0 ? ForkSafety::apart : ForkSafety::none;
}

int keep_from_children(const void* address, size_t length) noexcept {
  static std::atomic<bool> told{false};
  MemoryRange pages;
  if (!whole_pages(address, length, pages)) return EINVAL;
  // without its stack no child could live to execute a program
  if (is_stack(pages)) return EOPNOTSUPP;
  if (!hold(pages)) return ENOMEM;
  void* const start = reinterpret_cast<void*>(pages.start);
  if (!::madvise(start, pages.bytes(), MADV_DONTFORK)) return 0;
  const int error = errno;
  give_to_children(address, length);
  unsigned tries = 10'000;
  let_children_have(pages, tries);  // the kernel has marked what precedes and follows a hole
  if (error != ENOMEM && !told.exchange(true))
    ERDMA_NOTICE(zero_copy, MR,
                 "memory of the application (%zu bytes) can't be kept from forked children: %s; it "
                 "is copied instead. Of huge pages use whole ones, or set FI_ERDMA_FORK=unsafe if "
                 "the process never forks",
                 length, std::strerror(error));
  // nothing is mapped there, so this is not a lack of room
  return error == ENOMEM ? EFAULT : error;
}

/// Without memory for the count, the pages stay apart.
void give_to_children(const void* address, size_t length) noexcept try {
  MemoryRange pages;
  if (!whole_pages(address, length, pages)) return;
  const std::lock_guard guard(g_holds_lock);
  holds().remove(pages, [](const MemoryRange& free) {
    (void)::madvise(reinterpret_cast<void*>(free.start), free.bytes(), MADV_DOFORK);
  });
} catch (const std::bad_alloc&) {
  return;
}

}  // namespace erdma::transport::verbs
