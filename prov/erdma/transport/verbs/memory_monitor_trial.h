#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "transport/verbs/memory_range.h"
#include "util/clock.h"

namespace erdma::transport::verbs {

/// Two watched pages, each of which gets other pages from a thread of its own. Each call returns
/// only when its event was read.
class MonitorTrial {
 public:
  struct Page {
    MemoryRange range() const noexcept {
      const auto start = reinterpret_cast<uintptr_t>(at);
      return {start, start + bytes};
    }
    /// Maps over the page, so that no other thread gets its address. To the kernel that is
    /// munmap().
    void replace() noexcept {
      ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      done = true;
    }
    bool replaced() const noexcept { return *static_cast<const volatile char*>(at) == 0; }

    void* at = MAP_FAILED;
    size_t bytes = 0;
    std::atomic<bool> done = false;
    bool started = false;
    pthread_t thread{};
  };

  MonitorTrial() noexcept {
    for (Page& page : pages) {
      page.bytes = size_t(::sysconf(_SC_PAGESIZE));
      page.at =
          ::mmap(nullptr, page.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (page.at != MAP_FAILED) *static_cast<volatile char*>(page.at) = 1;
    }
  }
  /// Nothing is watched any more, or all events were read.
  ~MonitorTrial() {
    for (Page& page : pages) {
      if (page.started) pthread_join(page.thread, nullptr);
      if (page.at != MAP_FAILED) ::munmap(page.at, page.bytes);
    }
  }
  MonitorTrial(const MonitorTrial&) = delete;
  MonitorTrial& operator=(const MonitorTrial&) = delete;

  bool mapped() const noexcept { return pages[0].at != MAP_FAILED && pages[1].at != MAP_FAILED; }
  static bool start(Page& page) noexcept {
    constexpr auto replace = [](void* argument) -> void* {
      static_cast<Page*>(argument)->replace();
      return nullptr;
    };
    page.started = !pthread_create(&page.thread, nullptr, replace, &page);
    return page.started;
  }
  /// Calls `condition` until it is true, or too much time has passed.
  template <typename Condition>
  static bool wait(Condition condition) noexcept {
    const util::SystemClock clock;
    const uint64_t deadline = clock.now() + 10'000'000'000;
    while (!condition()) {
      if (clock.now() >= deadline) return condition();
      sched_yield();
    }
    return true;
  }
  bool one_done() const noexcept { return pages[0].done || pages[1].done; }
  bool all_done() const noexcept { return pages[0].done && pages[1].done; }

  Page pages[2];
};

}  // namespace erdma::transport::verbs
