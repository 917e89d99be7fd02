#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/shm/bulk_shared.h"
#include "transport/shm/core_sharing.h"
#include "transport/shm/shared_regions.h"
#include "util/pool.h"

namespace erdma::transport::shm {

/// The sender's side of one outbound channel's large transfers.
class BulkOut {
 public:
  BulkOut(CmaCalls& calls, CmaPeer& receiver, const CoreSharing& core, Counters& counters)
      : x_calls(calls), x_peer(receiver), x_core(core), x_counters(counters) {}

  /// 0, -FI_EAGAIN while too much is shared, -FI_EINVAL or -FI_ENOMEM. `timed`: read_time() will be
  /// asked.
  int share(const iovec* memory, size_t count, size_t length, RemoteKey& remote_key,
            bool timed = false) noexcept;
  /// `done`: it does not know the key, has reported its end, or sees that this side has left. It is
  /// not told of the revocation, as a rule: it would have to fetch the line for its next message.
  enum class Receiver : uint8_t { may_read, done };
  /// After the return nothing here touches the memory. A transfer that still uses it fails at the
  /// receiver with -FI_ECANCELED, unless the receiver is done.
  void revoke(const RemoteKey& remote_key, Receiver receiver = Receiver::may_read) noexcept;
  /// Sets the shared regions, which the receiver accesses by itself and with which poll() may help
  /// it. Null: none. The table must outlive this object.
  void shares(SharedRegions* table) noexcept { x_shared_regions = table; }
  /// The region was taken out of the table: after the return nothing here touches it.
  void taken_back(uint64_t id) noexcept;
  /// The receiver's shared memory (kBulkBytes) is mapped at `shared`, which must outlive this
  /// object. Counts as a step of the next poll().
  void attach(void* shared) noexcept;
  bool attached() const noexcept { return x_page != nullptr; }
  /// Helps the receiver by a chunk or two. Returns the steps made: if any, a sleeping receiver may
  /// have work and needs a wake-up.
  int poll() noexcept;
  /// How long the receiver's calls took, in ns, for what was shared as `timed`; 0 = unknown. To be
  /// asked before it is revoked.
  uint32_t read_time(const RemoteKey& remote_key) const noexcept;
  /// What is shared and not revoked. What is shared after something long may have to wait for it.
  enum class Shared : uint8_t { nothing, short_only, some_long };
  Shared shared() const noexcept {
    return x_long > 0            ? Shared::some_long
           : x_pool.in_use() > 0 ? Shared::short_only
                                 : Shared::nothing;
  }
  /// Something is shared, the receiver asks for something that no longer is, a chunk of a shared
  /// region can be moved, or slots are to be filled once the receiver has emptied some.
  bool active() noexcept;
  bool ready() noexcept;  ///< poll() would do something now: do not sleep

 private:
  /// A validated copy of one ticket, for one generation.
  struct Joined {
    TicketState state;
    uint64_t remote_key = 0;
    Range range;
    uint64_t base = 0;  ///< offset in the shared memory at which offset 0 of the transfer lies
    size_t chunk = 0;
    uint32_t chunks = 0;
    size_t iovs = 0;
    iovec iov[kMaxIov];  ///< the receiver's memory
    bool stopped = false;
    uint32_t done = 0;      ///< chunks moved
    uint32_t piece = 0;     ///< bounce: next slot to fill
    uint32_t consumed = 0;  ///< bounce: slots emptied, as last read
    uint64_t offset = 0;    ///< bounce: bytes of the range sent

    /// Slots are still to be filled, though all may be full now. The receiver does not ask again
    /// when it has emptied some. `now`: the state of the ticket.
    bool fills(TicketState now) const noexcept {
      return now.mode == Mode::bounce && now.generation == state.generation && !stopped &&
             offset < range.length();
    }
  };

  int step(size_t ticket, Budget& budget) noexcept;
  /// False if the receiver is changing the ticket at this moment.
  bool join(size_t ticket, TicketState state) noexcept;
  int refusal(const Joined& joined) noexcept;
  const SharedMemory* find(uint64_t remote_key) noexcept {
    if (SharedRegions::names(remote_key))
      return x_shared_regions ? x_shared_regions->find(remote_key) : nullptr;
    return x_pool.find({uint32_t(remote_key >> 16), uint16_t(remote_key)});
  }
  void stop_all(uint64_t id) noexcept;
  void publish_write_state() noexcept;
  void stop(size_t ticket, int error, uint32_t chunk = Stop::kNoChunk) noexcept;
  uint32_t claim(size_t ticket) noexcept;
  int move_chunks(size_t ticket, const SharedMemory& memory, Budget& budget) noexcept;
  void stop_at(size_t ticket, uint32_t index, CmaCall call, int error) noexcept;
  int fill_slots(size_t ticket, const SharedMemory& memory, Budget& budget) noexcept;
  bool slot_free(Joined& joined) const noexcept;
  bool ready(size_t ticket) noexcept;
  TicketState state_of(size_t ticket) const noexcept {
    return unpack_state(load_acquire(x_page->ticket[ticket].state));
  }

  CmaCalls& x_calls;
  CmaPeer& x_peer;
  const CoreSharing& x_core;
  Counters& x_counters;
  void* x_memory = nullptr;
  BulkShared* x_page = nullptr;  ///< null until attach()
  util::Pool<SharedMemory, 8> x_pool{kMaxShared};
  uint32_t x_long = 0;  ///< of these, longer than PathChoice::kOneCopy
  SharedRegions* x_shared_regions = nullptr;
  /// As in BulkShared::revoked, for revocations before attach().
  std::unique_ptr<uint16_t[]> x_revoked = std::make_unique<uint16_t[]>(kMaxShared);
  Joined x_tickets[kTickets];
  WriteState x_told = WriteState::unknown;
  /// The receiver may sleep until it learns the write state: announcing it counts as a step.
  bool x_announce = false;
};

}  // namespace erdma::transport::shm
