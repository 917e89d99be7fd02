#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/cma.h"
#include "transport/shm/options.h"
#include "transport/shm/region_gate.h"
#include "transport/transport.h"
#include "util/clock.h"

/// Large transfers of one channel (data from one sender to one receiver). The receiver drives a
/// transfer: it publishes a ticket, and both sides claim chunks of it. The receiver moves its
/// chunks with readv, the sender with writev. Where neither is possible, the sender streams through
/// bounce slots. See docs/architecture.md, "Large messages inside a host".
namespace erdma::transport::shm {

inline constexpr size_t kBulkControlBytes = 4096;
inline constexpr size_t kBounceSlotBytes = size_t{32} * 1024;
/// More than most second-level caches, as in a byte ring: a core writes lines that have left the
/// other core's cache two to four times as fast as those that are still there.
inline constexpr uint32_t kBounceSlots = 64;
/// Where processes share a core, and so its caches, so many are used; likewise by a channel beyond
/// the first few of an endpoint, and by most copies on trial.
inline constexpr uint32_t kFewBounceSlots = 16;
/// Size of the memory shared for one channel: the control page, then the bounce slots. The slots
/// get physical memory only when they are first needed (BulkMemory::back_bounce).
inline constexpr size_t kBulkBytes = kBulkControlBytes + kBounceSlots * kBounceSlotBytes;

/// What a bulk channel asks of the BulkOperations that owns its memory.
class BulkMemory {
 public:
  /// Gives so many slots physical memory. 0, -FI_EAGAIN (there is none now) or another negative
  /// errno.
  virtual int back_bounce(uint32_t slots) noexcept = 0;
  /// How many slots transfers may use by choice: 0, kFewBounceSlots or kBounceSlots. Fewer once
  /// many channels have backed slots: then only transfers that have no other way use some.
  virtual uint32_t affordable_slots() const noexcept = 0;
  /// The sender gave up the channel, perhaps before it attached: nothing that it shared is valid.
  virtual bool sender_left() const noexcept = 0;
  /// This side shares memory with the sender, too: large messages go both ways.
  virtual bool shares_back() const noexcept = 0;
  /// As Turns::both_ways().
  virtual bool streams_back() const noexcept = 0;
  /// Either way is permitted, but calls of the kernel are fast compared with copies. The first call
  /// may measure that.
  virtual bool calls_are_fast() noexcept = 0;
  /// How many revocations of shared regions this side has been told of.
  virtual uint64_t revocations_seen() const noexcept = 0;
  /// Bracket each step of an access to a shared region; `heard` is revocations_seen() at the
  /// beginning of the access. enter() returns false if the region may have been revoked since: the
  /// step must not happen, and leave() must not be called.
  virtual bool enter(uint64_t heard) noexcept = 0;
  virtual void leave() noexcept = 0;
  /// Tells the sender about a ticket that it does not expect. Has an effect only if the sender
  /// polls.
  virtual void ask_for_help() noexcept = 0;

 protected:
  ~BulkMemory() = default;
};

}  // namespace erdma::transport::shm
