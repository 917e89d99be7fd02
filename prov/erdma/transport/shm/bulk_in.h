#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/bulk.h"
#include "transport/shm/bulk_generation.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

namespace erdma::transport::shm {

/// Receiver's side of one inbound channel's large transfers: who is next. `shared` (kBulkBytes,
/// zeroed when made) outlives it; the sender may write anything there at any time.
class BulkIn {
 public:
  static constexpr uint64_t kEveryGroup = UINT64_MAX;

  BulkIn(void* shared, BulkMemory& memory, CmaCalls& calls, CmaPeer& sender, const Options& options,
         const CoreSharing& core, Counters& counters, const util::Clock& clock) noexcept
      : x_backing(memory),
        x_generations(shared, memory, calls, sender, options, core, counters, clock) {}

  /// Begins to copy `length` bytes of the sender's shared memory. Any number may be queued; they
  /// run a few at a time; those of one `group` can be ended apart from the others. 0 or -FI_EINVAL,
  /// -FI_ENOMEM.
  int start(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
            uint64_t token, uint64_t group = 0) noexcept;
  /// Begins to access a shared region. on_done() may say -FI_EBUSY: it is being revoked, or
  /// -FI_EOPNOTSUPP: it can't be reached. Then any part of the bytes was moved.
  int access(CmaCall call, const SharedRegion& region, uint64_t offset, const iovec* local,
             size_t count, size_t length, uint64_t token) noexcept;
  /// Moves a chunk or two of what is active; sink.on_done() for what has finished. Returns the
  /// steps made: if any, a sleeping sender may have something to do.
  int poll(Sink& sink) noexcept;
  bool active() const noexcept { return x_live > 0; }  ///< something is started and not reported
  bool ready() noexcept;  ///< poll() would do something now: do not sleep
  /// The sender claims nothing more from now on. False: it lives, perhaps, and is inside a write
  /// into local memory: ask again. No poll() between quiesce() and cancel(). Both are about all
  /// transfers, or about those of one group.
  bool quiesce(uint64_t group = kEveryGroup) noexcept;
  /// They end: on_done(status) for each. After return none of them touches local memory, provided
  /// that quiesce() has returned true or the sender is dead.
  void cancel(Sink& sink, int status, uint64_t group = kEveryGroup) noexcept;

 private:
  int enqueue(const SharedMemory& remote, CmaCall call, uint64_t base, const iovec* local,
              size_t count, size_t length, uint64_t token, uint64_t group) noexcept;
  void activate() noexcept;
  int step(Transfer& transfer, Budget& budget) noexcept;
  int deliver(Sink& sink) noexcept;
  void finish(Transfer& transfer, int status) noexcept;

  BulkMemory& x_backing;
  Generations x_generations;
  util::Pool<Transfer, 4> x_pool;
  util::IntrusiveList<Transfer> x_queued, x_running, x_finished;  ///< each in order of start()
  size_t x_live = 0;                                              ///< in any of them
  bool x_ticket_used[kTickets] = {};
};

}  // namespace erdma::transport::shm
