#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

/// Weakly ordered memory.
///
/// This is an operational model of C++'s memory order. Each thread has a view: for each location,
/// the oldest store that it may still read. A relaxed load may read this store or any later one; an
/// acquiring load takes over the view of the store that it read, and so on. The scenario runs again
/// and again until it has tried every order of the threads' steps and every result of each load.
/// Thus results occur that aarch64 allows and x86 hides. The threads are fibers of one thread, so
/// the kernel has no influence on their order.
namespace erdma::fake::weak {

class Model;
inline Model* g_model = nullptr;

class Model {
 public:
  /// Runs Scenario (thread(i) for each i < kThreads, then wrong()) in every way. Returns the number
  /// of wrong runs, and in `runs`, unless it is null, the number of all.
  template <typename Scenario>
  static uint64_t wrong_runs(uint64_t* runs = nullptr) {
    std::vector<Choice> path;
    uint64_t wrong = 0, count = 0;
    do {
      Model model(path);
      g_model = &model;
      Scenario scenario;
      model.run(Scenario::kThreads, [&](size_t thread) { scenario.thread(thread); });
      wrong += scenario.wrong();
      ++count;
      path = std::move(model.x_path);
      while (!path.empty() && path.back().taken + 1 == path.back().of) path.pop_back();
      if (!path.empty()) ++path.back().taken;
    } while (!path.empty());
    if (runs) *runs = count;
    return wrong;
  }

  size_t add(uint64_t value) {
    x_stores.push_back({{value, {}}});
    x_sequential.push_back(0);
    return x_stores.size() - 1;
  }
  uint64_t load(size_t at, std::memory_order order) {
    Thread& self = step();
    size_t from = grown(self.now)[at];
    if (order == std::memory_order_seq_cst) {
      settle(self);
      from = std::max(from, x_sequential[at]);
    }
    const size_t last = x_stores[at].size() - 1;
    const size_t read = last - choose(last - from + 1);
    self.now[at] = std::max(self.now[at], read);
    join(order == std::memory_order_relaxed ? self.acquirable : self.now, x_stores[at][read].view);
    return x_stores[at][read].value;
  }
  void store(size_t at, uint64_t value, std::memory_order order) {
    if (x_threads.empty())  // a constructor runs before the threads begin
      x_stores[at].back().value = value;
    else
      publish(step(), at, value, order, {});
  }
  template <typename Change>
  uint64_t change(size_t at, std::memory_order order, Change change) {
    Thread& self = step();
    const Store before = x_stores[at].back();
    join(acquires(order) ? grown(self.now) : grown(self.acquirable), before.view);
    publish(self, at, change(before.value), order, before.view);
    return before.value;
  }
  /// A failing exchange also reads the last store. It models the strong version on a machine where
  /// only changes by other threads make it fail.
  template <typename T>
  bool compare_exchange(size_t at, T& seen, uint64_t value, std::memory_order order,
                        std::memory_order otherwise) {
    Thread& self = step();
    const Store before = x_stores[at].back();
    const bool same = before.value == uint64_t(seen);
    join(acquires(same ? order : otherwise) ? grown(self.now) : grown(self.acquirable),
         before.view);
    self.now[at] = std::max(grown(self.now)[at], x_stores[at].size() - 1);
    if (same) publish(self, at, value, order, before.view);
    seen = T(before.value);
    return same;
  }
  void fence(std::memory_order order) { fence_of(step(), order); }
  /// Every thread executes a full fence where it is (membarrier(2)): in the first round it gives
  /// what it stored, in the second it takes what all gave.
  void fence_everywhere() {
    step();
    for (int round = 0; round < 2; ++round)
      for (const auto& thread : x_threads) fence_of(*thread, std::memory_order_seq_cst);
  }

 private:
  using Stack = std::array<char, 64 * 1024>;  ///< stack of a thread; all runs use it
  using View = std::vector<size_t>;           ///< number of a store, by location
  struct Store {
    uint64_t value;
    View view;
  };
  struct Choice {
    size_t taken, of;
  };
  struct Thread {
    View now, acquirable, released;
    std::vector<std::pair<size_t, size_t>> unsettled;  ///< sequentially consistent stores
    ucontext_t context{};
    bool over = false;
  };

  explicit Model(std::vector<Choice> path) : x_path(std::move(path)) {}

  static bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
  }
  static bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
  }
  void fence_of(Thread& self, std::memory_order order) {
    if (acquires(order)) join(grown(self.now), self.acquirable);
    if (order == std::memory_order_seq_cst) {
      settle(self);
      join(self.now, x_sequential);
      join(x_sequential, self.now);
    }
    if (releases(order)) self.released = grown(self.now);
  }
  View& grown(View& view) const {
    view.resize(x_stores.size());
    return view;
  }
  void join(View& into, const View& other) const {
    grown(into);
    for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
  }
  /// Gives a thread's sequentially consistent stores their place in the total order. This happens
  /// at its next sequentially consistent operation at the latest; until then, a later relaxed store
  /// may be seen first.
  void settle(Thread& self) {
    for (const auto& [at, number] : self.unsettled)
      x_sequential[at] = std::max(x_sequential[at], number);
    self.unsettled.clear();
  }
  void publish(Thread& self, size_t at, uint64_t value, std::memory_order order, const View& kept) {
    const size_t number = x_stores[at].size();
    if (order == std::memory_order_seq_cst) {
      settle(self);
      self.unsettled.emplace_back(at, number);
    }
    grown(self.now)[at] = number;
    View view = releases(order) ? self.now : grown(self.released);
    view[at] = number;
    join(view, kept);
    x_stores[at].push_back({value, std::move(view)});
  }

  size_t choose(size_t of) {
    if (of == 1) return 0;
    if (x_at == x_path.size()) x_path.push_back({0, of});
    return x_path[x_at++].taken;
  }
  /// Lets other threads run first, or not.
  Thread& step() {
    Thread& self = *x_running;
    swapcontext(&self.context, &x_scheduler);
    return self;
  }
  template <typename Body>
  void run(size_t threads, Body body) {
    x_body = [this, &body] {
      body(x_number);
      x_running->over = true;
    };
    for (size_t i = 0; i < threads; ++i) add_thread(i);
    for (;;) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < threads; ++i)
        if (!x_threads[i]->over) ready.push_back(i);
      if (ready.empty()) break;
      x_number = ready[choose(ready.size())];
      x_running = x_threads[x_number].get();
      swapcontext(&x_scheduler, &x_running->context);
    }
  }
  void add_thread(size_t number) {
    static std::vector<std::unique_ptr<Stack>> stacks;
    if (number == stacks.size()) stacks.push_back(std::make_unique<Stack>());
    ucontext_t& context = x_threads.emplace_back(std::make_unique<Thread>())->context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[number]->data();
    context.uc_stack.ss_size = stacks[number]->size();
    context.uc_link = &x_scheduler;
    makecontext(
        &context, [] { g_model->x_body(); }, 0);
  }

  std::vector<Choice> x_path;
  size_t x_at = 0;
  std::vector<std::vector<Store>> x_stores;  ///< stores by location, oldest first
  View x_sequential;
  std::vector<std::unique_ptr<Thread>> x_threads;
  Thread* x_running = nullptr;
  size_t x_number = 0;  ///< number of the running thread
  std::function<void()> x_body;
  ucontext_t x_scheduler{};
};

/// Replaces std::atomic in a Scenario.
template <typename T>
class Atomic {
 public:
  Atomic(T value = T()) : x_at(g_model->add(uint64_t(value))) {}
  T load(std::memory_order order) const { return T(g_model->load(x_at, order)); }
  void store(T value, std::memory_order order) { g_model->store(x_at, uint64_t(value), order); }
  T exchange(T value, std::memory_order order) {
    return T(g_model->change(x_at, order, [&](uint64_t) { return uint64_t(value); }));
  }
  T fetch_add(T value, std::memory_order order) {
    return T(
        g_model->change(x_at, order, [&](uint64_t old) { return uint64_t(T(T(old) + value)); }));
  }
  T fetch_or(T bits, std::memory_order order) {
    return T(g_model->change(x_at, order, [&](uint64_t old) { return old | uint64_t(bits); }));
  }
  bool compare_exchange_strong(T& seen, T value, std::memory_order order,
                               std::memory_order otherwise) {
    return g_model->compare_exchange(x_at, seen, uint64_t(value), order, otherwise);
  }

 private:
  size_t x_at;
};

/// Replaces HardwareOrder.
struct Order {
  static void fence(std::memory_order order) { g_model->fence(order); }
};
struct NoOrder {
  static void fence(std::memory_order) {}
};

}  // namespace erdma::fake::weak
