#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/bulk.h"
#include "transport/shm/bulk_transfers.h"
#include "transport/shm/short_reads.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

namespace erdma::transport::shm {

/// The receiver's side of one inbound channel's large transfers; decides which transfer runs next.
/// `shared` (kBulkBytes, zeroed when made) must outlive it; the sender may write anything there at
/// any time.
class BulkIn {
 public:
  static constexpr uint64_t kEveryGroup = UINT64_MAX;

  BulkIn(void* shared, BulkMemory& memory, CmaCalls& calls, CmaPeer& sender, const Options& options,
         const CoreSharing& core, Counters& counters, const util::Clock& clock) noexcept
      : x_backing(memory),
        x_short(shared, memory, calls, sender, options, core, counters, clock),
        x_transfers(shared, memory, calls, sender, options, core, counters, clock) {}

  /// Copies `length` bytes of the sender's shared memory at once. kDone, -FI_EINVAL, or -FI_EAGAIN:
  /// call start().
  int read_short(const RemoteKey& remote, const iovec* local, size_t count, size_t length) noexcept;
  /// Begins to copy `length` bytes of the sender's shared memory. Any number of transfers may be
  /// queued; a few run at a time. Transfers of one `group` can be ended apart from the others. 0,
  /// -FI_EINVAL or -FI_ENOMEM.
  int start(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
            uint64_t token, uint64_t group = 0) noexcept;
  /// Begins to access a shared region. on_done() may report -FI_EBUSY (not now: the region is being
  /// revoked, or the kernel lacked memory) or -FI_EOPNOTSUPP (it cannot be reached); any part of
  /// the bytes may have been moved then.
  int access(CmaCall call, const SharedRegion& region, uint64_t offset, const iovec* local,
             size_t count, size_t length, uint64_t token) noexcept;
  /// Moves a chunk or two of the active transfers; calls sink.on_done() for each that has finished.
  /// Returns the steps made: if any, a sleeping sender may have work and needs a wake-up.
  int poll(Sink& sink) noexcept;
  /// A transfer has been started and not reported.
  bool active() const noexcept { return x_live > 0; }
  bool ready() noexcept;  ///< poll() would do something now: do not sleep
  /// Stops the sender from claiming chunks. False: the sender may be alive and inside a write into
  /// local memory; call again. Do not poll() between quiesce() and cancel(). Both apply to all
  /// transfers, or to those of one group.
  bool quiesce(uint64_t group = kEveryGroup) noexcept;
  /// Ends the transfers and calls on_done(status) for each. After the return none of them touches
  /// local memory, provided that quiesce() has returned true or the sender is dead.
  void cancel(Sink& sink, int status, uint64_t group = kEveryGroup) noexcept;

 private:
  int enqueue(const SharedMemory& remote, CmaCall call, uint64_t base, const iovec* local,
              size_t count, size_t length, uint64_t token, uint64_t group) noexcept;
  void activate() noexcept;
  int step(Transfer& transfer, Budget& budget) noexcept;
  int deliver(Sink& sink) noexcept;
  void finish(Transfer& transfer, int status) noexcept;

  BulkMemory& x_backing;
  ShortReads x_short;
  BulkTransfers x_transfers;
  util::Pool<Transfer, 4> x_pool;
  util::IntrusiveList<Transfer> x_queued, x_running, x_finished;  ///< each in order of start()
  size_t x_live = 0;  ///< number of transfers in all three lists
  bool x_ticket_used[kTickets] = {};
};

}  // namespace erdma::transport::shm
