#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <rdma/fabric.h>

#include "protocol/completion.h"
#include "protocol/engine.h"
#include "util/intrusive_list.h"

namespace erdma::fabric {

class Counter;
class CompletionPort;
class EndpointDriver;
class MemoryRegions;
class DeferredWorkQueue;

/// The condition that an operation waits for, and how its completion is reported.
struct Trigger {
  Counter* counter = nullptr;
  uint64_t threshold = 0;
  // The next three are for deferred works (FI_QUEUE_WORK), which wait for successes and failures.
  // An operation with FI_TRIGGER waits for successes only, and completes as it would without the
  // flag.
  const void* work = nullptr;     ///< the fi_deferred_work, for FI_CANCEL_WORK; null: FI_TRIGGER
  Counter* completion = nullptr;  ///< null: none
  bool report = false;            ///< FI_COMPLETION: the endpoint reports the completion, too
};

struct WorkTag;

/// One operation that waits for a counter. It owns copies of the lists that describe the operation;
/// the data stays in the application's memory, unless it is injected. A deferred work is the
/// CompletionSink of its operation, and lives until the operation completes.
class DeferredWork final : public util::ListHook<DeferredWork>,
                           public util::ListHook<WorkTag>,
                           public protocol::CompletionSink {
 public:
  enum class Kind : uint8_t { send, receive, one_sided, set, add };

  // All constructors throw std::bad_alloc.
  DeferredWork(EndpointDriver& of, const protocol::SendArgs& args, const Trigger& on);
  DeferredWork(EndpointDriver& of, const protocol::ReceiveArgs& args, const Trigger& on);
  DeferredWork(EndpointDriver& of, const protocol::OneSidedArgs& args, const Trigger& on);
  /// FI_OP_CNTR_SET, FI_OP_CNTR_ADD.
  DeferredWork(Kind what, Counter& target, uint64_t value, const Trigger& on);

  protocol::CompletionEntry& succeed(bool report) noexcept override;
  void fail(const protocol::ErrorCompletion& completion) noexcept override;

  void* context() const noexcept {
    return kind == Kind::receive ? receive.context : operation.local.context;
  }
  bool reads() const noexcept;
  uint64_t completion_flags() const noexcept;
  /// The port at which the endpoint reports operations of this kind.
  CompletionPort& port() const noexcept;

  const Kind kind;
  const Trigger trigger;
  EndpointDriver* const endpoint = nullptr;  ///< null for Kind::set and add
  Counter* const target = nullptr;           ///< for Kind::set and add
  const uint64_t value = 0;                  ///< for Kind::set and add
  DeferredWorkQueue* queue = nullptr;        ///< set by DeferredWorkQueue::add()
  bool fired = false;                        ///< posted, so it can't be cancelled any more
  protocol::OneSidedArgs operation{};        ///< a send uses `local` only
  protocol::ReceiveArgs receive{};

 private:
  void keep_local();
  void keep_operands();

  iovec x_iov[transport::kMaxIov];
  iovec x_operands[transport::kMaxIov];
  iovec x_compares[transport::kMaxIov];
  protocol::wire::Segment x_segments[transport::kMaxIov];
  std::unique_ptr<std::byte[]> x_injected;
};

/// The works of a domain. A work is in the list of its counter until the counter reaches the
/// threshold, and then in x_due until run() posts it. If its endpoint has no room, the work waits
/// in a list of the endpoint, so that works of other endpoints go on. run() is never called from
/// within a step of an engine. The caller holds the domain lock. Invariant: while there are works,
/// every endpoint calls run() after each of its steps, and each counter that a work refers to is
/// attached to every endpoint.
class DeferredWorkQueue {
 public:
  explicit DeferredWorkQueue(MemoryRegions& regions) noexcept : x_regions(regions) {}
  DeferredWorkQueue(const DeferredWorkQueue&) = delete;
  DeferredWorkQueue& operator=(const DeferredWorkQueue&) = delete;

  /// Takes a work, and posts it if its condition is met. Throws std::bad_alloc.
  void add(std::unique_ptr<DeferredWork> work);
  /// Posts all works that are due, except those of endpoints without room.
  void run() noexcept;
  /// FI_CANCEL_WORK. -FI_ENOENT: no such work is waiting.
  int cancel_work(const void* work) noexcept;
  /// FI_FLUSH_WORK: cancels all works that wait for a counter; null: for any.
  void cancel_all(const Counter* counter) noexcept;
  /// fi_cancel(3) of a waiting operation with FI_TRIGGER. False: there is none.
  bool cancel(const EndpointDriver& endpoint, const void* context) noexcept;

  // For counters.
  void collect(Counter& counter) noexcept;
  void unwatch_counter(Counter& counter) noexcept;

  // For endpoints. add() throws std::bad_alloc, and may then be repeated.
  void add(EndpointDriver& endpoint);
  void remove(EndpointDriver& endpoint) noexcept;

  // For works.
  protocol::CompletionEntry& scratch() noexcept { return x_scratch; }
  /// The operation of the work is over. reap() deletes the work.
  void over(DeferredWork& work) noexcept;

 private:
  using All = util::IntrusiveList<DeferredWork, WorkTag>;

  void watch_counter(Counter* counter);
  int post(DeferredWork& work) noexcept;
  void retry(util::IntrusiveList<DeferredWork>& works) noexcept;
  bool fire(DeferredWork& work) noexcept;
  void destroy(DeferredWork& work) noexcept;
  void reap() noexcept;
  void expect(bool on) noexcept;

  MemoryRegions& x_regions;
  std::vector<EndpointDriver*> x_endpoints;
  std::vector<Counter*> x_watched_counters;
  All x_all;
  util::IntrusiveList<DeferredWork> x_due;
  util::IntrusiveList<DeferredWork> x_over;
  bool x_running = false;
  protocol::CompletionEntry x_scratch{};
};

}  // namespace erdma::fabric
