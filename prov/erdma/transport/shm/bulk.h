#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/shm/cma.h"
#include "transport/shm/options.h"
#include "transport/shm/region_gate.h"
#include "transport/transport.h"
#include "util/clock.h"

/// Large transfers of one channel (data of one sender to one receiver). The receiver drives: it
/// publishes a ticket, both sides claim chunks of it (readv here, writev there, or neither: then
/// the sender streams through bounce slots). docs/architecture.md, "Large messages inside a host".
namespace erdma::transport::shm {

inline constexpr size_t kBulkControlBytes = 4096;
inline constexpr size_t kBounceSlotBytes = size_t{32} * 1024;
inline constexpr size_t kBounceSlots = 16;
/// Size of the memory shared for one channel: control page, then bounce slots. The slots are backed
/// by memory only once they are needed (BulkMemory::back_bounce).
inline constexpr size_t kBulkBytes = kBulkControlBytes + kBounceSlots * kBounceSlotBytes;

/// The receiver's means to have the bounce slots backed before the sender touches them.
class BulkMemory {
 public:
  virtual int back_bounce() noexcept = 0;  ///< posix_fallocate of the slots: 0 or negative errno
  /// Copying through slots may be faster than CMA. False: theirs would be one memory too many, so
  /// they are for transfers that have no other way.
  virtual bool bounce_affordable() const noexcept = 0;
  /// The sender gave up the channel, perhaps before it was attached: nothing it shared is valid.
  virtual bool sender_left() const noexcept = 0;
  /// Recalls of a shared region that this side has heard of.
  virtual uint64_t revocations_seen() const noexcept = 0;
  /// Around each step of an access to a shared region, with revocations_seen() of its beginning.
  /// False: there is to be none any more, and no leave().
  virtual bool enter(uint64_t heard) noexcept = 0;
  virtual void leave() noexcept = 0;
  /// A ticket is published that the sender does not expect: of use if it polls.
  virtual void ask_for_help() noexcept = 0;

 protected:
  ~BulkMemory() = default;
};

}  // namespace erdma::transport::shm
