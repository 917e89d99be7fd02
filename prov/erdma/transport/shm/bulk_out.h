#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/shm/bulk.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/lent_table.h"
#include "util/pool.h"

namespace erdma::transport::shm {

/// One ticket as the sender took it over: a validated copy, for one generation.
struct Joined {
  TicketState state;
  uint64_t exposure = 0;
  Range range;
  uint64_t base = 0;  ///< of offset 0, in what is exposed
  size_t chunk = 0;
  uint32_t chunks = 0;
  size_t iovs = 0;
  iovec iov[kMaxIov];  ///< the receiver's memory
  bool stopped = false;
  uint32_t done = 0;      ///< chunks moved
  uint32_t piece = 0;     ///< bounce: next slot to fill
  uint32_t consumed = 0;  ///< bounce: slots emptied, when last looked
  uint64_t offset = 0;    ///< bounce: bytes of the range sent
};

struct BulkOut::State {
  State(CmaCalls& cma_calls, CmaPeer& receiver, Counters& counted) noexcept
      : calls(cma_calls), peer(receiver), counters(counted) {}

  int step(size_t ticket, Budget& budget) noexcept;
  /// False if the receiver changes the ticket just now.
  bool join(size_t ticket, TicketState state) noexcept;
  int refusal(const Joined& joined) noexcept;
  const RemoteMemory* find(uint64_t exposure) noexcept {
    if (LentTable::names(exposure)) return lent ? lent->find(exposure) : nullptr;
    return pool.find({uint32_t(exposure >> 16), uint16_t(exposure)});
  }
  bool may(CmaCall call) const noexcept {
    const CmaVerdict& verdict = call == CmaCall::read ? peer.read : peer.write;
    return verdict.permission == Permission::allowed;
  }
  void stop_all(uint64_t id) noexcept;
  void publish_write_state() noexcept;
  void stop(size_t ticket, int error, uint32_t chunk = Stop::kNoChunk) noexcept;
  uint32_t claim(size_t ticket) noexcept;
  int move_chunks(size_t ticket, const RemoteMemory& memory, Budget& budget) noexcept;
  int fill_slots(size_t ticket, const RemoteMemory& memory, Budget& budget) noexcept;
  bool slot_free(Joined& joined) const noexcept;
  bool ready(size_t ticket) noexcept;
  TicketState state_of(size_t ticket) const noexcept {
    return unpack_state(page->ticket[ticket].state.load(std::memory_order_acquire));
  }

  CmaCalls& calls;
  CmaPeer& peer;
  Counters& counters;
  void* memory = nullptr;
  BulkShared* page = nullptr;  ///< null until attach()
  util::Pool<RemoteMemory, 8> pool{kMaxExposures};
  LentTable* lent = nullptr;
  /// As in BulkShared, for withdrawals before attach().
  std::unique_ptr<uint16_t[]> withdrawn = std::make_unique<uint16_t[]>(kMaxExposures);
  Joined tickets[kTickets];
  WriteState told = WriteState::unknown;
  bool announce = false;  ///< the receiver may sleep until it learns that: counts as a step
};

}  // namespace erdma::transport::shm
