// Threads that sleep with different conditions, some changes, and every order of both: no thread
// may sleep while its condition holds. The queues are real. Threads are fibers of one thread, so
// that only the choices of the scheduler decide a run. It chooses wherever a real thread holds no
// lock: where the thread sleeps and where it yields. As the worst that a kernel may do, epoll_wait
// and poll wake a fiber only if the descriptor is still readable when the fiber is chosen.
//
// ERDMA_MODEL_SEED and ERDMA_MODEL_RUNS set the seed and the number of random runs, in thousands.
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/eq.h"
#include "fabric/fibers.h"
#include "fabric/rig.h"
#include "fabric/wait_set.h"

// For wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// In fibers, a thread that computes seems to take the core in each yield, so that threads which
// poll sleep. The end of a sleep that is due anyway is left out.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static uint64_t now = 1;
  if (!erdma::test::g_running) return int(syscall(SYS_clock_gettime, clock, time));
  now += erdma::fabric::IdleReads::kLongYield;
  *time = {time_t(now / 1'000'000'000), long(now % 1'000'000'000)};
  return 0;
}
extern "C" int getrusage(__rusage_who_t, rusage* usage) noexcept {
  *usage = {};
  return 0;
}

namespace {

using erdma::fabric::CompletionQueue;
using erdma::fabric::Counter;
using erdma::fabric::ProgressSource;
using namespace erdma::test;
using erdma::util::DomainLock;
using erdma::util::Guard;

constexpr int kForever = -1;

/// Does the same as ck_assert() without reporting each call to libcheck.
void must(bool holds) {
  if (!holds) ck_abort_msg("a call of the provider failed");
}

// --- objects to sleep on ------------------------------------------------------------------------

/// A source that behaves like an endpoint. Work makes its descriptor readable only while the source
/// is armed, and then until disarm(). If it can't be armed, it wakes the sleepers of all its
/// queues.
class Source final : public ProgressSource {
 public:
  Source() : x_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void hand_in(std::function<void()> work) {
    x_work.push_back(std::move(work));
    if (std::exchange(x_armed, false)) eventfd_write(x_fd.get(), 1);
  }
  bool has_work() const { return !x_work.empty(); }

  int progress() noexcept override {
    if (x_promised && !slept_on()) disarm();
    std::deque<std::function<void()>> work;
    work.swap(x_work);
    for (const auto& step : work) step();
    if (x_promised && !arm_transport()) wake_sleepers();
    return int(work.size());
  }
  bool arm() noexcept override {
    x_promised = true;
    if (arm_transport()) return true;
    wake_sleepers();
    return false;
  }
  void disarm() noexcept override {
    x_promised = x_armed = false;
    eventfd_t value;
    eventfd_read(x_fd.get(), &value);
  }
  int wait_fds(int* fds, int) const noexcept override {
    fds[0] = x_fd.get();
    return 1;
  }

  std::vector<CompletionQueue*> queues;
  std::vector<Counter*> counters;

 private:
  bool arm_transport() noexcept { return x_armed = x_work.empty(); }
  bool slept_on() const noexcept {
    const auto sleeping = [](const auto* queue) { return queue->sleeping(); };
    return std::any_of(queues.begin(), queues.end(), sleeping) ||
           std::any_of(counters.begin(), counters.end(), sleeping);
  }
  void wake_sleepers() noexcept {
    for (auto* queue : queues)
      if (queue->sleeping()) queue->wake();
    for (auto* counter : counters)
      if (counter->sleeping()) counter->wake();
  }

  std::deque<std::function<void()>> x_work;
  bool x_promised = false;
  bool x_armed = false;
  erdma::util::Fd x_fd;
};

/// One object of each kind: two queues and a counter on a first source; a second source for the
/// counter; a queue, a counter and an event queue in a wait set.
struct World {
  World() : fabric(the_fabric()) {
    fi_wait_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    must(fi_wait_open(fabric, &attr, &set) == 0);
    for (Queue& queue : queues) {
      const bool member = &queue == &queues[1];
      fi_cq_attr cq{};
      cq.wait_obj = member ? FI_WAIT_SET : FI_WAIT_FD;
      cq.wait_cond = FI_CQ_COND_THRESHOLD;
      cq.wait_set = set;
      queue.cq = *erdma::fabric::make_cq({lock, 0, false, {}}, &cq, nullptr);
    }
    for (Count& count : counts) {
      const bool member = &count == &counts[1];
      fi_cntr_attr cntr{};
      cntr.wait_obj = member ? FI_WAIT_SET : FI_WAIT_FD;
      cntr.wait_set = set;
      count.cntr = *erdma::fabric::make_cntr({lock, 0, false, {}}, &cntr, nullptr);
    }
    fi_eq_attr attr_of_eq{};
    attr_of_eq.flags = FI_WRITE;
    attr_of_eq.wait_obj = FI_WAIT_SET;
    attr_of_eq.wait_set = set;
    must(fi_eq_open(fabric, &attr_of_eq, &eq, nullptr) == 0);
    const Guard guard(lock);
    for (Queue& queue : queues) attach(*queue.cq, first);
    for (Count& count : counts) attach(*count.cntr, first);
    attach(*counts[0].cntr, second);
  }
  ~World() {
    {
      const Guard guard(lock);
      for (Source* source : {&first, &second}) {
        for (auto* queue : source->queues) queue->detach(*source);
        for (auto* counter : source->counters) counter->detach(*source);
      }
    }
    for (Queue& queue : queues) must(fi_close(&queue.cq->fid) == 0);
    for (Count& count : counts) must(fi_close(&count.cntr->fid) == 0);
    must(fi_close(&eq->fid) == 0);
    must(fi_close(&set->fid) == 0);
  }
  /// One fabric for all runs, since making one takes longer than a run.
  static fid_fabric* the_fabric() {
    static fid_fabric* const made = [] {
      fid_fabric* opened = nullptr;
      fi_info* const info = erdma::test::get_info();
      must(erdma::test::provider()->fabric(info->fabric_attr, &opened, nullptr) == 0);
      fi_freeinfo(info);
      return opened;
    }();
    return made;
  }

  void attach(CompletionQueue& cq, Source& source) {
    cq.attach(source);
    source.queues.push_back(&cq);
  }
  void attach(Counter& cntr, Source& source) {
    cntr.attach(source);
    source.counters.push_back(&cntr);
  }

  struct Queue {
    CompletionQueue* cq = nullptr;
    size_t entries = 0;    ///< unread
    unsigned signals = 0;  ///< signals so far
    unsigned blocked = 0;  ///< fibers in fi_cq_sread
  };
  struct Count {
    Counter* cntr = nullptr;
    uint64_t value = 0, failures = 0;
    uint64_t changes = 0;
    uint64_t seen = 0;  ///< `changes` that a fi_trywait has told of, for all watchers
  };

  // Called by a source, or by a thread that posts.
  void push(Queue& queue) {
    queue.cq->push({}, nullptr);
    ++queue.entries;
  }
  void count(Count& count) {
    count.cntr->add_success(1);
    ++count.value;
    ++count.changes;
  }
  void count_failure(Count& count) {
    count.cntr->add_failure();
    ++count.failures;
    ++count.changes;
  }
  bool read(Queue& queue) {
    fi_cq_entry entry;
    const bool found = fi_cq_read(queue.cq, &entry, 1) == 1;
    queue.entries -= found;
    return found;
  }
  bool may_sleep(fid_t fid) {
    if (fid == &set->fid) set_seen = counts[1].changes;
    fid_t fids[] = {fid};
    if (erdma::fabric::try_wait(fids, 1) == 0) return true;
    for (Count& count : counts)
      if (fid == &count.cntr->fid) count.seen = count.changes;
    return false;
  }
  void wait_for(fid_t fid) {
    int fd = -1;
    must(fi_control(fid, FI_GETWAIT, &fd) == 0);
    if (fid->fclass == FI_CLASS_EQ) return park({{fd, POLLIN, 0}});
    if (may_sleep(fid)) park({{fd, POLLIN, 0}});
  }

  DomainLock lock{erdma::util::LockKind::mutex};
  fid_fabric* const fabric;
  fid_wait* set = nullptr;
  Source first, second;
  Queue queues[2];
  Count counts[2];
  fid_eq* eq = nullptr;
  size_t events = 0;      ///< unread events of eq
  uint64_t set_seen = 0;  ///< changes of the set's counter at the last look
};

/// A thread, and whether its condition holds.
struct Sleeper {
  std::string what;
  std::function<bool()> holds;
  std::function<void()> body;
  Fiber* fiber = nullptr;
};

Sleeper count_waiter(World& world, World::Count& count, uint64_t more) {
  const uint64_t goal = count.value + more;
  auto failures = std::make_shared<uint64_t>(UINT64_MAX);
  return {"fi_cntr_wait(+" + std::to_string(more) + ")",
          [&world, &count, goal, failures] {
            return count.value >= goal || count.failures > *failures || world.first.has_work();
          },
          [&count, goal, failures] {
            *failures = count.failures;
            (void)fi_cntr_wait(count.cntr, goal, kForever);
          }};
}

Sleeper count_watcher(World& world, World::Count& count, uint64_t more) {
  const uint64_t goal = count.value + more;
  return {"fi_trywait and poll for a counter (+" + std::to_string(more) + ")",
          [&world, &count] { return count.changes > count.seen || world.first.has_work(); },
          [&world, &count, goal] {
            while (fi_cntr_read(count.cntr) < goal) {
              sched_yield();  // another thread may read the counter now
              world.wait_for(&count.cntr->fid);
            }
          }};
}

Sleeper queue_reader(World& world, World::Queue& queue, size_t threshold) {
  auto signals = std::make_shared<unsigned>(UINT32_MAX);
  return {"fi_cq_sread(" + std::to_string(threshold) + ")",
          [&world, &queue, threshold, signals] {
            return queue.entries >= threshold || (queue.entries > 0 && queue.blocked > 1) ||
                   queue.signals > *signals || world.first.has_work();
          },
          [&queue, threshold, signals] {
            fi_cq_entry entry;
            ++queue.blocked;
            *signals = queue.signals;
            if (fi_cq_sread(queue.cq, &entry, 1, reinterpret_cast<void*>(threshold), kForever) == 1)
              --queue.entries;
            --queue.blocked;
          }};
}

Sleeper queue_watcher(World& world, World::Queue& queue) {
  return {"fi_trywait and poll for a queue",
          [&world, &queue] { return queue.entries > 0 || world.first.has_work(); },
          [&world, &queue] {
            while (!world.read(queue)) world.wait_for(&queue.cq->fid);
          }};
}

/// Yields count as long (clock_gettime below), so the thread sleeps in every other call or so.
Sleeper queue_poller(World& world, World::Queue& queue) {
  return {"fi_cq_read that sleeps",
          [&world, &queue] { return queue.entries > 0 || world.first.has_work(); },
          [&world, &queue] {
            while (!world.read(queue)) continue;
          }};
}

Sleeper count_poller(World& world, World::Count& count, uint64_t more) {
  const uint64_t goal = count.value + more;
  return {"fi_cntr_read that sleeps (+" + std::to_string(more) + ")",
          [&world, &count, goal] { return count.value >= goal || world.first.has_work(); },
          [&count, goal] {
            while (fi_cntr_read(count.cntr) < goal) continue;
          }};
}

Sleeper set_waiter(World& world) {
  auto seen = std::make_shared<uint64_t>(UINT64_MAX);
  return {"fi_wait",
          [&world, seen] {
            return world.queues[1].entries > 0 || world.events > 0 || world.first.has_work() ||
                   world.counts[1].changes > *seen;
          },
          [&world, seen] {
            *seen = world.counts[1].changes;
            must(fi_wait(world.set, kForever) == 0);
          }};
}

Sleeper set_watcher(World& world) {
  return {"fi_trywait and poll for a set",
          [&world] {
            return world.queues[1].entries > 0 || world.events > 0 || world.first.has_work() ||
                   world.counts[1].changes > world.set_seen;
          },
          [&world] { world.wait_for(&world.set->fid); }};
}

Sleeper event_reader(World& world) {
  return {"fi_eq_sread", [&world] { return world.events > 0; },
          [&world] {
            fi_eq_entry entry;
            uint32_t event;
            if (fi_eq_sread(world.eq, &event, &entry, sizeof(entry), kForever, 0) > 0)
              --world.events;
          }};
}

void write_event(World& world) {
  const fi_eq_entry entry{};
  must(fi_eq_write(world.eq, FI_NOTIFY, &entry, sizeof(entry), 0) == sizeof(entry));
  ++world.events;
}

/// A step of another thread, which never sleeps.
using Change = std::pair<std::string, std::function<void()>>;

Change change(World& world, unsigned kind, unsigned which) {
  World::Count& count = world.counts[which];
  World::Queue& queue = world.queues[which];
  switch (kind) {
    case 0:
      return {"work that counts", [&] { world.first.hand_in([&] { world.count(count); }); }};
    case 1:
      return {"work that completes", [&] { world.first.hand_in([&] { world.push(queue); }); }};
    case 2:
      return {"work that fails", [&] { world.first.hand_in([&] { world.count_failure(count); }); }};
    case 3:
      return {"fi_cntr_add", [&] {
                must(fi_cntr_add(count.cntr, 1) == 0);
                ++count.value;
                ++count.changes;
              }};
    case 4:
      return {"a completion", [&] {
                const Guard guard(world.lock);
                world.push(queue);
              }};
    case 5:
      return {"fi_cq_signal", [&] {
                ++queue.signals;
                must(fi_cq_signal(queue.cq) == 0);
              }};
    case 6:
      return {"fi_cq_read", [&] { world.read(queue); }};
    case 7:
      return {"fi_trywait of a queue", [&] { (void)world.may_sleep(&queue.cq->fid); }};
    case 8:
      return {"much polling", [&] {
                for (int i = 0; i < 70; ++i) world.read(queue);
              }};
    case 9:
      return {"fi_trywait of a set", [&] { (void)world.may_sleep(&world.set->fid); }};
    case 10:
      return {"an event", [&] { write_event(world); }};
    default:
      return {"fi_cntr_read", [&] { (void)fi_cntr_read(count.cntr); }};
  }
}
constexpr unsigned kChanges = 12;

Sleeper sleeper(World& world, unsigned kind, unsigned which, unsigned amount) {
  switch (kind) {
    case 0:
      return count_waiter(world, world.counts[which], amount);
    case 1:
      return count_watcher(world, world.counts[0], amount);
    case 2:
      return queue_reader(world, world.queues[which], amount);
    case 3:
      return queue_watcher(world, world.queues[which]);
    case 4:
      return set_waiter(world);
    case 5:
      return set_watcher(world);
    case 6:
      return event_reader(world);
    case 7:
      return queue_poller(world, world.queues[which]);
    default:
      return count_poller(world, world.counts[0], amount);
  }
}
constexpr unsigned kSleepers = 9;

// --- runs ---------------------------------------------------------------------------------------

/// Runs sleepers and changes in one order. Returns a description of the fault, or an empty string.
std::string run(World& world, std::vector<Sleeper> sleepers, const std::vector<Change>& changes,
                const Choose& choose) {
  Scheduler scheduler(choose);
  for (Sleeper& sleeper : sleepers) sleeper.fiber = &scheduler.add(sleeper.body);
  for (const Change& change : changes) scheduler.then(change.second);
  std::string wrong;
  if (!scheduler.run()) wrong = "somebody goes round for ever;";
  for (const Sleeper& sleeper : sleepers)
    if (wrong.empty() && !sleeper.fiber->done && sleeper.holds())
      wrong = sleeper.what + " sleeps on;";
  if (!wrong.empty()) {
    for (const Sleeper& sleeper : sleepers) wrong += " " + sleeper.what + ",";
    for (const Change& change : changes) wrong += " " + change.first + ",";
    return wrong;
  }
  // Ends the sleepers: makes changes until all conditions hold.
  for (int i = 0; i < 8; ++i) {
    for (unsigned which = 0; which < 2; ++which) {
      scheduler.then(change(world, 3, which).second);
      scheduler.then(change(world, 4, which).second);
    }
    scheduler.then([&world] { write_event(world); });
    scheduler.choose_no_more();
    if (!scheduler.run()) return "somebody goes round for ever at the end";
  }
  for (const Sleeper& sleeper : sleepers)
    if (!sleeper.fiber->done) return sleeper.what + " sleeps on at the end";
  while (world.read(world.queues[0]) || world.read(world.queues[1])) continue;
  fi_eq_entry entry;
  uint32_t event;
  while (fi_eq_read(world.eq, &event, &entry, sizeof(entry), 0) > 0) --world.events;
  return {};
}

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 0) : otherwise;
}

/// A few sleepers and changes, which run in all orders.
struct Case {
  struct {
    unsigned kind, which, amount;
  } sleepers[3];
  struct {
    unsigned kind, which;
  } changes[3];
};
constexpr unsigned kNone = UINT32_MAX;
constexpr Case kCases[] = {
    // Two thresholds of one counter.
    {{{0, 0, 1}, {0, 0, 2}, {kNone, 0, 0}}, {{3, 0}, {kNone, 0}, {kNone, 0}}},
    {{{0, 0, 1}, {0, 0, 3}, {0, 0, 2}}, {{3, 0}, {0, 0}, {kNone, 0}}},
    // Two ways to wait for one counter.
    {{{0, 0, 2}, {1, 0, 1}, {kNone, 0, 0}}, {{3, 0}, {kNone, 0}, {kNone, 0}}},
    {{{0, 1, 2}, {4, 0, 0}, {kNone, 0, 0}}, {{0, 1}, {kNone, 0}, {kNone, 0}}},
    // Two ways to wait for one queue, and its signal.
    {{{2, 0, 2}, {3, 0, 0}, {kNone, 0, 0}}, {{4, 0}, {kNone, 0}, {kNone, 0}}},
    {{{2, 0, 3}, {2, 0, 1}, {3, 0, 0}}, {{1, 0}, {5, 0}, {kNone, 0}}},
    {{{2, 0, 1}, {2, 0, 1}, {kNone, 0, 0}}, {{5, 0}, {6, 0}, {1, 0}}},
    // A set whose counter reports each change once.
    {{{4, 0, 0}, {4, 0, 0}, {kNone, 0, 0}}, {{3, 1}, {kNone, 0}, {kNone, 0}}},
    {{{4, 0, 0}, {4, 0, 0}, {4, 0, 0}}, {{3, 1}, {kNone, 0}, {kNone, 0}}},
    {{{4, 0, 0}, {5, 0, 0}, {kNone, 0, 0}}, {{0, 1}, {kNone, 0}, {kNone, 0}}},
    {{{4, 0, 0}, {2, 1, 1}, {kNone, 0, 0}}, {{1, 1}, {5, 1}, {kNone, 0}}},
    // A thread that only reads a counter makes its change, while another sleeps or is about to.
    {{{1, 0, 1}, {kNone, 0, 0}, {kNone, 0, 0}}, {{0, 0}, {11, 0}, {kNone, 0}}},
    {{{1, 0, 1}, {1, 0, 2}, {kNone, 0, 0}}, {{0, 0}, {11, 0}, {kNone, 0}}},
    {{{4, 0, 0}, {kNone, 0, 0}, {kNone, 0, 0}}, {{0, 1}, {11, 1}, {kNone, 0}}},
    {{{4, 0, 0}, {5, 0, 0}, {kNone, 0, 0}}, {{0, 1}, {11, 1}, {kNone, 0}}},
    // Two queues of one source; fi_trywait was called once for one of them, and then no more.
    {{{2, 1, 1}, {3, 0, 0}, {kNone, 0, 0}}, {{7, 0}, {1, 1}, {1, 0}}},
    {{{6, 0, 0}, {6, 0, 0}, {4, 0, 0}}, {{10, 0}, {kNone, 0}, {kNone, 0}}},
    // Threads that poll and sleep, alone and beside another way to wait.
    {{{7, 0, 0}, {7, 0, 0}, {kNone, 0, 0}}, {{1, 0}, {4, 0}, {kNone, 0}}},
    {{{7, 0, 0}, {2, 0, 1}, {kNone, 0, 0}}, {{1, 0}, {5, 0}, {kNone, 0}}},
    {{{7, 0, 0}, {3, 0, 0}, {kNone, 0, 0}}, {{7, 0}, {1, 0}, {kNone, 0}}},
    {{{8, 0, 1}, {0, 0, 2}, {kNone, 0, 0}}, {{0, 0}, {3, 0}, {kNone, 0}}},
};

bool threads_are_fibers() {
#ifdef __SANITIZE_THREAD__
  return false;  // the thread sanitizer takes a fiber's stack for a mistake
#endif
  return true;
}

SUITE(.offered = threads_are_fibers);
TEST_CASE(.timeout = 600);

TEST(nobody_sleeps_on_in_any_order, std::size(kCases)) {
  const Case& what = kCases[_i];
  std::vector<std::pair<size_t, size_t>> path;  // chosen possibility, and how many there were
  unsigned long runs = 0;
  for (bool more = true; more; ++runs) {
    World world;
    size_t depth = 0;
    const auto choose = [&](size_t ways) {
      if (depth == path.size()) path.emplace_back(0, ways);
      if (path[depth].second != ways) ck_abort_msg("the same choices lead elsewhere");
      return path[depth++].first;
    };
    std::vector<Sleeper> sleepers;
    std::vector<Change> changes;
    for (const auto& one : what.sleepers)
      if (one.kind != kNone) sleepers.push_back(sleeper(world, one.kind, one.which, one.amount));
    for (const auto& one : what.changes)
      if (one.kind != kNone) changes.push_back(change(world, one.kind, one.which));
    const std::string wrong = run(world, std::move(sleepers), changes, choose);
    if (!wrong.empty()) ck_abort_msg("order %lu: %s", runs, wrong.c_str());
    path.resize(depth);
    while (!path.empty() && path.back().first + 1 == path.back().second) path.pop_back();
    more = !path.empty();
    if (more) ++path.back().first;
  }
  ck_assert_uint_gt(runs, 1);
}

/// This many runs share a world, so that each run starts with the state that earlier runs left.
constexpr uint64_t kRunsPerWorld = 64;

TEST(nobody_sleeps_on_in_many_orders) {
  const uint64_t seed = number("ERDMA_MODEL_SEED", std::random_device()());
  const uint64_t runs = 1000 * number("ERDMA_MODEL_RUNS", 50);
  std::printf("sleep model: ERDMA_MODEL_SEED=%lu ERDMA_MODEL_RUNS=%lu\n", seed, runs / 1000);
  std::unique_ptr<World> world;
  std::mt19937_64 random;
  for (uint64_t i = 0; i < runs; ++i) {
    if (i % kRunsPerWorld == 0) {
      world = std::make_unique<World>();
      random.seed(seed + i / kRunsPerWorld);
    }
    const auto choose = [&](size_t ways) { return size_t(random() % ways); };
    std::vector<Sleeper> sleepers;
    std::vector<Change> changes;
    for (size_t j = 1 + choose(3); j > 0; --j)
      sleepers.push_back(sleeper(*world, unsigned(choose(kSleepers)), unsigned(choose(2)),
                                 unsigned(1 + choose(3))));
    for (size_t j = 1 + choose(4); j > 0; --j)
      changes.push_back(change(*world, unsigned(choose(kChanges)), unsigned(choose(2))));
    const std::string wrong = run(*world, std::move(sleepers), changes, choose);
    if (!wrong.empty())
      ck_abort_msg("ERDMA_MODEL_SEED=%lu finds it in its first %lu runs: %s",
                   seed + i / kRunsPerWorld, kRunsPerWorld, wrong.c_str());
  }
}

}  // namespace
