#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

/// Threads as fibers of one thread, for a program of one source. Only the choices of a scheduler
/// decide what they do. It chooses where a fiber sleeps and where it yields. As the worst that a
/// kernel may do, epoll_wait and poll wake a fiber only if a descriptor is still readable when the
/// fiber is chosen. So code that holds its lock except while it sleeps or yields runs in every
/// order that the lock permits.
namespace erdma::test {

/// One thread.
struct Fiber {
  explicit Fiber(std::function<void()> what) : body(std::move(what)) {}
  std::function<void()> body;
  ucontext_t context{};
  std::vector<pollfd> sleeps_on;  ///< empty: it runs, or yields
  bool yields = false;
  bool done = false;
  std::unique_ptr<char[]> stack;
};

inline Fiber* g_running;  ///< null: the scheduler
inline ucontext_t g_scheduler;

inline bool any_readable(std::vector<pollfd>& fds) {
  const timespec now{};
  return syscall(SYS_ppoll, fds.data(), fds.size(), &now, nullptr, 8) > 0;
}

inline void give_way() {
  swapcontext(&g_running->context, &g_scheduler);
}

inline void park(std::vector<pollfd> fds) {
  Fiber& self = *g_running;
  self.sleeps_on = std::move(fds);
  do give_way();
  while (!any_readable(self.sleeps_on));
  self.sleeps_on.clear();
}

inline void begin() {
  g_running->body();
  g_running->done = true;
  give_way();
}

}  // namespace erdma::test

// The functions that the provider calls to sleep. In a fiber they return to the scheduler.
extern "C" int epoll_wait(int fd, epoll_event* events, int count, int timeout) {
  if (!erdma::test::g_running)
    return int(syscall(SYS_epoll_pwait, fd, events, count, timeout, nullptr, 8));
  erdma::test::park({{fd, POLLIN, 0}});
  return 1;
}
extern "C" int poll(pollfd* fds, nfds_t count, int timeout) {
  if (!erdma::test::g_running || timeout == 0) {
    const timespec limit{timeout / 1000, timeout % 1000 * 1'000'000L};
    return int(syscall(SYS_ppoll, fds, count, timeout < 0 ? nullptr : &limit, nullptr, 8));
  }
  erdma::test::park({fds, fds + count});
  return 1;
}
extern "C" int sched_yield() noexcept {
  if (!erdma::test::g_running) return int(syscall(SYS_sched_yield));
  erdma::test::g_running->yields = true;
  erdma::test::give_way();
  return 0;
}

namespace erdma::test {

/// Chooses one of the given number of possibilities: 0, 1, ...
using Choose = std::function<size_t(size_t)>;

/// Runs fibers and changes in the chosen order. Changes run in their own order, while no fiber
/// runs. A fiber that yields continues when no other fiber can.
class Scheduler {
 public:
  explicit Scheduler(Choose choose) : x_choose(std::move(choose)) {}

  Fiber& add(std::function<void()> body) {
    x_fibers.push_back(std::make_unique<Fiber>(std::move(body)));
    Fiber& fiber = *x_fibers.back();
    fiber.stack = take_stack();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    makecontext(&fiber.context, begin, 0);
    return fiber;
  }
  /// Makes the scheduler always choose the first possibility from now on.
  void choose_no_more() {
    x_choose = [](size_t) { return size_t{0}; };
  }
  void then(std::function<void()> change) { x_changes.push_back(std::move(change)); }
  ~Scheduler() {
    for (auto& fiber : x_fibers) stacks().push_back(std::move(fiber->stack));
  }

  /// Runs until no fiber can continue. False: some fiber never stops.
  bool run() {
    for (unsigned steps = 0; steps < kTooMany; ++steps) {
      std::vector<Fiber*> ready, yielding;
      for (auto& fiber : x_fibers)
        if (!fiber->done && (fiber->sleeps_on.empty() || any_readable(fiber->sleeps_on)))
          (fiber->yields ? yielding : ready).push_back(fiber.get());
      if (ready.empty()) ready.swap(yielding);
      const size_t ways = ready.size() + !x_changes.empty();
      if (ways == 0) return true;
      const size_t way = ways == 1 ? 0 : x_choose(ways);
      if (way < ready.size()) {
        resume(*ready[way]);
        continue;
      }
      const auto change = std::move(x_changes.front());
      x_changes.pop_front();
      change();
    }
    return false;
  }

 private:
  static constexpr size_t kStack = 64 * 1024;
  static constexpr unsigned kTooMany = 500;

  static std::vector<std::unique_ptr<char[]>>& stacks() {
    static std::vector<std::unique_ptr<char[]>> kept;
    return kept;
  }
  static std::unique_ptr<char[]> take_stack() {
    if (stacks().empty()) return std::make_unique<char[]>(kStack);
    auto stack = std::move(stacks().back());
    stacks().pop_back();
    return stack;
  }
  void resume(Fiber& fiber) {
    fiber.yields = false;
    g_running = &fiber;
    swapcontext(&g_scheduler, &fiber.context);
    g_running = nullptr;
  }

  Choose x_choose;
  std::vector<std::unique_ptr<Fiber>> x_fibers;
  std::deque<std::function<void()>> x_changes;
};

}  // namespace erdma::test
