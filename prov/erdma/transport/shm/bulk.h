#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/shm/cma.h"
#include "transport/shm/lending.h"
#include "transport/shm/options.h"
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

class LentTable;
struct BulkShared;  // layout of the control page, in bulk_shared.h

/// The receiver's means to have the bounce slots backed before the sender touches them.
class BulkMemory {
 public:
  virtual int back_bounce() noexcept = 0;  ///< posix_fallocate of the slots: 0 or negative errno
  /// Copying through slots may be faster than CMA. False: theirs would be one memory too many, so
  /// they are for transfers that have no other way.
  virtual bool bounce_affordable() const noexcept = 0;
  /// The sender gave up the channel, perhaps before it was attached: nothing it exposed is valid.
  virtual bool sender_left() const noexcept = 0;
  /// Around each access to lent memory. False: there is to be none now, and no leave().
  virtual bool enter() noexcept = 0;
  virtual void leave() noexcept = 0;
  /// A ticket is published that the sender does not expect: of use if it polls.
  virtual void ask_for_help() noexcept = 0;

 protected:
  ~BulkMemory() = default;
};

/// Receiver's side of one inbound channel. `shared` (kBulkBytes, zeroed when made) outlives it; the
/// sender may write anything there at any time: no value in it is trusted.
class BulkIn {
 public:
  BulkIn(void* shared, BulkMemory& memory, CmaCalls& calls, CmaPeer& peer, const Options& options,
         Counters& counters, const util::Clock& clock);
  ~BulkIn();  ///< after abort, if something is active

  /// Begins to copy `length` bytes of the sender's exposed memory. Any number may be queued; they
  /// run a few at a time. 0 or -FI_EINVAL, -FI_ENOMEM.
  int start(const Exposure& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept;
  /// Begins to access lent memory. on_done() may say -FI_EBUSY: it is being recalled, or
  /// -FI_EOPNOTSUPP: it can't be reached. Then any part of the bytes was moved.
  int access(CmaCall call, const LentMemory& lent, uint64_t offset, const iovec* local,
             size_t count, size_t length, uint64_t token) noexcept;
  /// Moves a chunk or two of what is active; sink.on_done() for what has finished. Returns the
  /// steps made: if any, a sleeping sender may have something to do.
  int poll(Sink& sink) noexcept;
  bool active() const noexcept;  ///< something is started and not reported
  bool ready() const noexcept;   ///< poll() would do something now: do not sleep
  /// The sender claims nothing more from now on. False: it lives, perhaps, and is inside a write
  /// into local memory: ask again. No poll() between settle() and abort().
  bool settle() noexcept;
  /// The channel ends: on_done(status) for everything. After return nothing touches local memory,
  /// provided that settle() has returned true or the sender is dead.
  void abort(Sink& sink, int status) noexcept;

 private:
  struct State;
  std::unique_ptr<State> x_state;
};

/// Sender's side of one outbound channel.
class BulkOut {
 public:
  BulkOut(CmaCalls& calls, CmaPeer& peer, const Options& options, Counters& counters,
          const util::Clock& clock);
  ~BulkOut();

  /// 0, -FI_EAGAIN while too much is exposed, -FI_EINVAL, -FI_ENOMEM.
  int expose(const iovec* memory, size_t count, size_t length, Exposure& exposure) noexcept;
  /// After return nothing here touches the memory; a transfer that still uses it fails at the
  /// receiver with -FI_ECANCELED.
  void withdraw(const Exposure& exposure) noexcept;
  /// Memory that the receiver accesses by itself, and that poll() may help it with; outlives this
  /// object. Null: none.
  void lends(LentTable* table) noexcept;
  /// It was taken out of the table: nothing here touches it any more.
  void taken_back(uint64_t id) noexcept;
  /// The receiver's shared memory (kBulkBytes) is mapped here now; it outlives this object. Counts
  /// as a step of the next poll().
  void attach(void* shared) noexcept;
  /// Helps the receiver by a chunk or two. Returns the steps made: if any, a sleeping receiver may
  /// have something to do.
  int poll() noexcept;
  /// Something is exposed, or asked for that no longer is, or lent memory is moved.
  bool active() const noexcept;
  bool attached() const noexcept;
  bool ready() const noexcept;  ///< poll() would do something now: do not sleep

 private:
  struct State;
  std::unique_ptr<State> x_state;
};

}  // namespace erdma::transport::shm
