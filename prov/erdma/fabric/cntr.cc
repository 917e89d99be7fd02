#include "fabric/cntr.h"

#include <mutex>
#include <utility>

#include "fabric/fid_ops.h"
#include "fabric/work_queue.h"
#include "util/log.h"

namespace erdma::fabric {

uint64_t Counter::read() noexcept {
  Rest next = Rest::none;
  uint64_t value = 0, failures = 0;
  {
    const util::DataGuard guard(x_lock);
    failures = x_now.failures;
    progress();
    value = x_now.successes;
    next = next_rest(std::exchange(x_read, value) != value);
  }
  if (next != Rest::none)
    rest(next, [&] { return x_now.successes != value || x_now.failures != failures; });
  return value;
}

uint64_t Counter::read_error() noexcept {
  const util::DataGuard guard(x_lock);
  progress();
  return x_now.failures;
}

/// Changes the counter on behalf of the application, and runs deferred works that were waiting for
/// the new value.
template <typename Change>
int Counter::change(Change&& apply) noexcept {
  const util::DataGuard guard(x_lock);
  apply();
  changed();
  if (x_queue) x_queue->run();
  return 0;
}

int Counter::add(uint64_t value) noexcept {
  return change([&] {
    x_now.successes += value;
    x_polled.successes += value;
  });
}
int Counter::add_error(uint64_t value) noexcept {
  return change([&] {
    x_now.failures += value;
    x_polled.failures += value;
  });
}
int Counter::set(uint64_t value) noexcept {
  return change([&] { x_polled.successes = x_now.successes = value; });
}
int Counter::set_error(uint64_t value) noexcept {
  return change([&] { x_polled.failures = x_now.failures = value; });
}

bool Counter::poll(bool told) noexcept {
  progress();
  const bool news = x_polled != x_now;
  if (told) x_polled = x_now;
  return news;
}

void Counter::tell_queue() noexcept {
  x_queue->collect(*this);
}

int Counter::wait(uint64_t threshold, int timeout_ms) noexcept {
  const Deadline deadline(timeout_ms);
  std::unique_lock lock(x_lock.data());
  const uint64_t failures_before = x_now.failures;
  for (;;) {
    const bool over = deadline.left() == 0;
    progress();
    if (x_now.successes >= threshold) return 0;
    if (x_now.failures != failures_before) return -FI_EAVAIL;
    if (!x_lock.owned()) return -FI_EOPBADSTATE;
    if (over) return -FI_ETIMEDOUT;
    sleep(lock, deadline);
  }
}

Readiness Counter::prepare_wait() noexcept {
  const util::DataGuard guard(x_lock);
  progress();
  if (std::exchange(x_news, false)) return Readiness::news;
  return watch() ? Readiness::armed : Readiness::busy;
}

int Counter::close() noexcept {
  {
    const util::Guard guard(x_lock);
    if (x_works || is_bound()) return -FI_EBUSY;
    if (DeferredWorkQueue* const queue = std::exchange(x_queue, nullptr))
      queue->unwatch_counter(*this);
    if (in_use()) return -FI_EBUSY;
  }
  return end(this);
}

// --- C entry points -----------------------------------------------------------------------------

namespace {

fi_ops_cntr g_cntr_ops = [] {
  auto ops = refusing<fi_ops_cntr>();
  ops.read = entry<&Counter::read>;
  ops.readerr = entry<&Counter::read_error>;
  ops.add = entry<&Counter::add>;
  ops.set = entry<&Counter::set>;
  ops.wait = blocking_entry<&Counter::wait>;
  ops.adderr = entry<&Counter::add_error>;
  ops.seterr = entry<&Counter::set_error>;
  return ops;
}();

}  // namespace

Counter::Counter(const QueueParent& parent, const fi_cntr_attr& attr,
                 std::unique_ptr<WaitObject> wait, void* context)
    : FidObject(FI_CLASS_CNTR, context, parent.children),
      Pollable(parent, attr.wait_obj, std::move(wait)) {
  ops = &g_cntr_ops;
}

util::Result<Counter*> make_cntr(const QueueParent& parent, const fi_cntr_attr* attr,
                                 void* context) {
  const fi_cntr_attr defaults{};
  if (!attr) attr = &defaults;
  if (attr->flags != 0) return -FI_EINVAL;
  const int events = enum_value(attr->events);
  if (events != FI_CNTR_EVENTS_COMP) {
    ERDMA_INFO(CNTR, "events %d are not supported\n", events);
    return -FI_ENOSYS;
  }
  return Pollable::make<Counter>(parent, *attr, context);
}

int open_cntr(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr, void* context) noexcept {
  return open_in(domain, attr, cntr, context, make_cntr);
}

}  // namespace erdma::fabric
