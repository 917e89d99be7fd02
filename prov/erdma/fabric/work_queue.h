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

/// What an operation waits for, and how it is reported.
struct Trigger {
  Counter* counter = nullptr;
  uint64_t threshold = 0;
  // Of a deferred work (FI_QUEUE_WORK). Else it is an operation with FI_TRIGGER: it waits for
  // successes, and completes as it would without.
  const void* work = nullptr;     ///< the fi_deferred_work, for FI_CANCEL_WORK; else null
  Counter* completion = nullptr;  ///< null: none
  bool report = false;            ///< FI_COMPLETION: at the endpoint, too
};

struct WorkTag;

/// One operation that waits for a counter. Owns copies of what describes it; the memory that it
/// moves is the application's, unless it is injected. A deferred one is where its operation
/// completes, and lives until then.
class DeferredWork final : public util::ListHook<DeferredWork>,
                           public util::ListHook<WorkTag>,
                           public protocol::CompletionSink {
 public:
  enum class Kind : uint8_t { send, receive, one_sided, set, add };

  // All throw std::bad_alloc.
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
  /// Where the endpoint completes operations of its kind.
  CompletionPort& port() const noexcept;

  const Kind kind;
  const Trigger trigger;
  EndpointDriver* const endpoint = nullptr;  ///< null of counter operations
  Counter* const target = nullptr;           ///< of those
  const uint64_t value = 0;                  ///< likewise
  DeferredWorkQueue* queue = nullptr;        ///< from DeferredWorkQueue::add() on
  bool fired = false;                        ///< not to be cancelled any more
  protocol::OneSidedArgs operation{};        ///< of a send: `local`
  protocol::ReceiveArgs receive{};

 private:
  void keep_local();

  iovec x_iov[transport::kMaxIov];
  iovec x_operands[transport::kMaxIov];
  iovec x_compares[transport::kMaxIov];
  protocol::wire::Segment x_segments[transport::kMaxIov];
  std::unique_ptr<std::byte[]> x_injected;
};

/// The works of a domain. Each is in the list of its counter until that has reached its threshold,
/// then in that of due ones until run() posts it, which is never within a step of an engine. The
/// caller holds the domain lock.
/// Invariant: while there are works, every endpoint calls run() after each step that it makes, and
/// each counter that takes part is shared with every endpoint.
class DeferredWorkQueue {
 public:
  explicit DeferredWorkQueue(MemoryRegions& regions) noexcept : x_regions(regions) {}
  DeferredWorkQueue(const DeferredWorkQueue&) = delete;
  DeferredWorkQueue& operator=(const DeferredWorkQueue&) = delete;

  /// Takes it, and posts it if its condition is met. Throws std::bad_alloc.
  void add(std::unique_ptr<DeferredWork> work);
  /// Posts what is due, until nothing is that can be.
  void run() noexcept;
  /// -FI_ENOENT: no such work waits.
  int cancel_work(const void* work) noexcept;
  /// All that wait, or all that wait for one counter.
  void cancel_all(const Counter* counter) noexcept;
  /// fi_cancel of an operation with FI_TRIGGER that waits.
  bool cancel(const EndpointDriver& endpoint, const void* context) noexcept;

  // For counters.
  void collect(Counter& counter) noexcept;
  void unwatch_counter(Counter& counter) noexcept;

  // For endpoints. add() throws std::bad_alloc.
  void add(EndpointDriver& endpoint);
  void remove(EndpointDriver& endpoint) noexcept;

  // For works.
  protocol::CompletionEntry& scratch() noexcept { return x_scratch; }
  /// Its operation is over; it goes when nobody looks at it any more.
  void over(DeferredWork& work) noexcept;

 private:
  using All = util::IntrusiveList<DeferredWork, WorkTag>;

  void watch_counter(Counter* counter);
  int post(DeferredWork& work) noexcept;
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
