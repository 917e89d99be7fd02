#include "fabric/work_queue.h"

#include <algorithm>

#include <rdma/fi_errno.h>

#include "fabric/cntr.h"
#include "fabric/endpoint_driver.h"
#include "fabric/mr.h"
#include "hmem/copy.h"

namespace erdma::fabric {
namespace {

/// Copies a list, and makes `from` point to the copy.
template <typename T>
void keep(T* copy, const T*& from, size_t count) {
  std::copy_n(from, count, copy);
  from = copy;
}

}  // namespace

DeferredWork::DeferredWork(EndpointDriver& of, const protocol::SendArgs& args, const Trigger& on)
    : kind(Kind::send), trigger(on), endpoint(&of) {
  operation.local = args;
  keep_local();
}

DeferredWork::DeferredWork(EndpointDriver& of, const protocol::ReceiveArgs& args, const Trigger& on)
    : kind(Kind::receive), trigger(on), endpoint(&of), receive(args) {
  keep(x_iov, receive.iov, receive.count);
}

DeferredWork::DeferredWork(EndpointDriver& of, const protocol::OneSidedArgs& args,
                           const Trigger& on)
    : kind(Kind::one_sided), trigger(on), endpoint(&of), operation(args) {
  keep(x_segments, operation.segments, operation.segment_count);
  keep(x_operands, operation.operands, operation.operand_count);
  keep(x_compares, operation.compares, operation.compare_count);
  keep_local();
  if (operation.inject_operands) keep_operands();
}

DeferredWork::DeferredWork(Kind what, Counter& counter, uint64_t amount, const Trigger& on)
    : kind(what), trigger(on), target(&counter), value(amount) {}

void DeferredWork::keep_local() {
  protocol::SendArgs& local = operation.local;
  keep(x_iov, local.iov, local.count);
  if (!local.inject || local.length == 0) return;
  x_injected.reset(new std::byte[local.length]);
  hmem::gather(x_injected.get(), x_iov, local.count, 0, local.length);
  x_iov[0] = {x_injected.get(), local.length};
  local.count = 1;
}

void DeferredWork::keep_operands() {
  const size_t each = operation.count * operation.element;
  const size_t operands = operation.operand_count ? each : 0;
  const size_t compares = operation.compare_count ? each : 0;
  if (operands + compares == 0) return;
  x_injected.reset(new std::byte[operands + compares]);
  std::byte* const second = x_injected.get() + operands;
  hmem::gather(x_injected.get(), x_operands, operation.operand_count, 0, operands);
  hmem::gather(second, x_compares, operation.compare_count, 0, compares);
  x_operands[0] = {x_injected.get(), operands};
  x_compares[0] = {second, compares};
  operation.operand_count = operands ? 1 : 0;
  operation.compare_count = compares ? 1 : 0;
}

bool DeferredWork::reads() const noexcept {
  return operation.op == protocol::wire::Op::read || (operation.flags & protocol::wire::kFetch);
}

uint64_t DeferredWork::completion_flags() const noexcept {
  if (kind == Kind::receive)
    return receive.completion_flags() | (receive.multi ? FI_MULTI_RECV : 0);
  if (kind == Kind::send) return operation.local.completion_flags();
  const bool atomic = operation.op == protocol::wire::Op::atomic;
  return (atomic ? FI_ATOMIC : FI_RMA) | (reads() ? FI_READ : FI_WRITE);
}

CompletionPort& DeferredWork::port() const noexcept {
  CompletionPorts& ports = endpoint->ports();
  if (kind == Kind::send) return ports.sent;
  if (kind == Kind::receive) return ports.received;
  return reads() ? ports.reads : ports.writes;
}

protocol::CompletionEntry& DeferredWork::succeed(bool) noexcept {
  if (trigger.completion) trigger.completion->add_success(1);
  queue->over(*this);
  return trigger.report ? port().succeed(true) : queue->scratch();
}

/// The completion counter reports the failure. An error entry does so if there is no counter, or if
/// the work asked for a completion.
void DeferredWork::fail(const protocol::ErrorCompletion& completion) noexcept {
  if (trigger.completion) trigger.completion->add_failure();
  if (trigger.report || !trigger.completion) port().fail(completion);
  queue->over(*this);
}

// --- the queue ----------------------------------------------------------------------------------

void DeferredWorkQueue::add(std::unique_ptr<DeferredWork> owned) {
  for (Counter* counter : {owned->trigger.counter, owned->trigger.completion, owned->target})
    watch_counter(counter);
  DeferredWork& work = *owned.release();
  work.queue = this;
  for (Counter* counter : {work.trigger.counter, work.trigger.completion, work.target})
    if (counter) counter->use();
  if (x_all.empty()) expect(true);
  x_all.push_back(work);
  util::IntrusiveList<DeferredWork>& waiting = work.trigger.counter->waiting();
  DeferredWork* later = waiting.front();
  while (later && later->trigger.threshold <= work.trigger.threshold) later = waiting.next(*later);
  if (later)
    waiting.insert_before(*later, work);
  else
    waiting.push_back(work);
  collect(*work.trigger.counter);
  run();
}

/// Moves works that are due to x_due in the order of their thresholds, even if the counter has
/// passed several at once.
void DeferredWorkQueue::collect(Counter& counter) noexcept {
  util::IntrusiveList<DeferredWork>& waiting = counter.waiting();
  const uint64_t events = counter.events(), successes = counter.successes();
  for (DeferredWork* work = waiting.front(); work && work->trigger.threshold <= events;) {
    DeferredWork* next = waiting.next(*work);
    if (work->trigger.work || work->trigger.threshold <= successes) {
      util::IntrusiveList<DeferredWork>::erase(*work);
      x_due.push_back(*work);
    }
    work = next;
  }
}

void DeferredWorkQueue::run() noexcept {
  if (x_running) return;
  x_running = true;
  for (EndpointDriver* endpoint : x_endpoints) retry(endpoint->works_without_room);
  while (DeferredWork* work = x_due.pop_front()) {
    if (work->endpoint && !work->endpoint->works_without_room.empty())
      work->endpoint->works_without_room.push_back(*work);
    else if (!fire(*work))
      work->endpoint->works_without_room.push_back(*work);
  }
  x_running = false;
  reap();
}

/// Posts works that found no room earlier, in order, until one finds none again.
void DeferredWorkQueue::retry(util::IntrusiveList<DeferredWork>& works) noexcept {
  while (DeferredWork* work = works.pop_front()) {
    if (fire(*work)) continue;
    works.push_front(*work);
    return;
  }
}

/// Posts the work to its engine. Returns 0 or a negative fi_errno, as Engine does.
int DeferredWorkQueue::post(DeferredWork& work) noexcept {
  if (!work.endpoint->owned()) return -FI_EOPBADSTATE;
  protocol::Engine& engine = *work.endpoint->engine();
  const bool deferred = work.trigger.work != nullptr;
  int status = 0;
  switch (work.kind) {
    case DeferredWork::Kind::send:
      status = deferred ? engine.post_send(work.operation.local, work)
                        : engine.post_send(work.operation.local);
      break;
    case DeferredWork::Kind::receive:
      status =
          deferred ? engine.post_receive(work.receive, work) : engine.post_receive(work.receive);
      break;
    default:
      status = deferred ? engine.post_one_sided(work.operation, &work)
                        : engine.post_one_sided(work.operation);
  }
  work.endpoint->worked();
  return status;
}

/// Executes a work that is in no list. False: the engine has no room for it (-FI_EAGAIN).
bool DeferredWorkQueue::fire(DeferredWork& work) noexcept {
  if (work.target) {
    work.kind == DeferredWork::Kind::set ? work.target->set_successes(work.value)
                                         : work.target->add_success(work.value);
    over(work);
    return true;
  }
  work.fired = true;
  const int rc = post(work);
  if (rc == -FI_EAGAIN) {
    work.fired = false;
    return false;
  }
  if (rc != 0) {
    const protocol::ErrorCompletion failed(work.context(), work.completion_flags(), -rc);
    if (work.trigger.work) {
      work.fail(failed);
      return true;
    }
    work.port().fail(failed);
  }
  if (!work.trigger.work || rc != 0) over(work);
  return true;
}

void DeferredWorkQueue::over(DeferredWork& work) noexcept {
  work.fired = true;
  for (Counter* counter : {work.trigger.counter, work.trigger.completion, work.target})
    if (counter) counter->release();
  x_over.push_back(work);
}

void DeferredWorkQueue::reap() noexcept {
  while (DeferredWork* work = x_over.pop_front()) {
    All::erase(*work);
    delete work;
  }
  if (x_all.empty()) expect(false);
}

void DeferredWorkQueue::destroy(DeferredWork& work) noexcept {
  if (static_cast<util::ListHook<DeferredWork>&>(work).linked())
    util::IntrusiveList<DeferredWork>::erase(work);
  over(work);
}

int DeferredWorkQueue::cancel_work(const void* work) noexcept {
  for (DeferredWork* each = x_all.front(); each; each = x_all.next(*each)) {
    if (each->trigger.work != work || each->fired) continue;
    destroy(*each);
    reap();
    return 0;
  }
  return -FI_ENOENT;
}

void DeferredWorkQueue::cancel_all(const Counter* counter) noexcept {
  for (DeferredWork* each = x_all.front(); each; each = x_all.next(*each))
    if (each->trigger.work && !each->fired && (!counter || each->trigger.counter == counter))
      destroy(*each);
  reap();
}

bool DeferredWorkQueue::cancel(const EndpointDriver& endpoint, const void* context) noexcept {
  for (DeferredWork* each = x_all.front(); each; each = x_all.next(*each)) {
    if (each->endpoint != &endpoint || each->fired || each->trigger.work) continue;
    if (each->context() != context) continue;
    each->port().fail({each->context(), each->completion_flags(), FI_ECANCELED});
    destroy(*each);
    reap();
    return true;
  }
  return false;
}

// --- counters and endpoints ---------------------------------------------------------------------

/// Throws std::bad_alloc, and then has had no effect.
void DeferredWorkQueue::watch_counter(Counter* counter) {
  if (!counter || counter->watched()) return;
  x_watched_counters.push_back(counter);
  try {
    for (EndpointDriver* endpoint : x_endpoints) endpoint->watch_counter(*counter);
  } catch (...) {
    unwatch_counter(*counter);
    throw;
  }
  counter->watched_by(*this);
}

void DeferredWorkQueue::unwatch_counter(Counter& counter) noexcept {
  if (std::erase(x_watched_counters, &counter) == 0 || x_regions.counts_with(counter)) return;
  for (EndpointDriver* endpoint : x_endpoints) endpoint->unwatch_counter(counter);
}

void DeferredWorkQueue::add(EndpointDriver& endpoint) {
  if (std::find(x_endpoints.begin(), x_endpoints.end(), &endpoint) == x_endpoints.end())
    x_endpoints.push_back(&endpoint);
  for (Counter* counter : x_watched_counters) endpoint.watch_counter(*counter);
  endpoint.expect_works(!x_all.empty());
}

/// Drops the endpoint's works without completions, like other operations of an endpoint that is
/// closed.
void DeferredWorkQueue::remove(EndpointDriver& endpoint) noexcept {
  reap();
  for (DeferredWork* each = x_all.front(); each; each = x_all.next(*each))
    if (each->endpoint == &endpoint) destroy(*each);
  std::erase(x_endpoints, &endpoint);
  endpoint.expect_works(false);
  reap();
}

void DeferredWorkQueue::expect(bool on) noexcept {
  for (EndpointDriver* endpoint : x_endpoints) endpoint->expect_works(on);
}

}  // namespace erdma::fabric
