#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/core.h"
#include "transport/shm/link.h"

/// Link::lend() and what peers do with it: RMA by CMA, whatever the owner's processor does.
namespace erdma::transport::shm {
namespace {

/// Up to here one call on the spot; what is longer moves in poll(), and a peer that polls helps.
constexpr size_t kAtOnce = size_t{32} * 1024;

LentMemory decode(const Exposure& exposure) noexcept {
  LentMemory lent;
  std::memcpy(&lent, exposure.bytes, sizeof(lent));
  return lent;
}

bool contains(const LentMemory& lent, const RemoteRange& part) noexcept {
  return lent.address != 0 && lent.address + lent.length >= lent.address &&
         part.offset <= lent.length && part.length <= lent.length - part.offset;
}

}  // namespace

/// The peer may be refused what this process is permitted, and the other way round: it finds out.
bool ShmLink::lends_memory() const noexcept {
  return x_core.options().cma && x_in && !ending();
}

int ShmLink::lend(const iovec& memory, bool for_reads, bool for_writes,
                  Exposure& exposure) noexcept {
  if (!lends_memory()) return -FI_EOPNOTSUPP;
  if (!x_lent) x_lent.reset(new (std::nothrow) LentTable);
  if (!x_lent) return -FI_ENOMEM;
  if (x_out && x_out->bulk) x_out->bulk->lends(x_lent.get());
  LentMemory lent = x_lent->lend(memory, for_reads, for_writes);
  lent.link = x_link_number;
  exposure.size = sizeof(lent);
  std::memcpy(exposure.bytes, &lent, sizeof(lent));
  return 0;
}

void ShmLink::recall(const Exposure& exposure) noexcept {
  if (exposure.size != sizeof(LentMemory)) return;
  ++x_recalls_made;
  if (x_in) x_in->lending().recall();
  const uint64_t id = x_lent ? x_lent->take_back(decode(exposure)) : 0;
  if (id && x_out && x_out->bulk) x_out->bulk->taken_back(id);
}

void ShmLink::recalled() noexcept {
  ++x_recalls_heard;
  if (out_up()) x_out->borrowing.recalled();
}

int ShmLink::read_direct(const RemoteRange& remote, const iovec* local, size_t count,
                         uint64_t token) noexcept {
  return access(CmaCall::read, remote, local, count, token);
}

/// What was written is placed.
int ShmLink::write_direct(const RemoteRange& remote, const iovec* local, size_t count,
                          uint64_t token, bool) noexcept {
  return access(CmaCall::write, remote, local, count, token);
}

int ShmLink::access(CmaCall call, const RemoteRange& remote, const iovec* local, size_t count,
                    uint64_t token) noexcept {
  if (!x_core.options().cma) return -FI_EOPNOTSUPP;
  if (remote.memory.size != sizeof(LentMemory) || remote.length == 0) return -FI_EINVAL;
  const LentMemory lent = decode(remote.memory);
  if (!contains(lent, remote) || count > kMaxIov ||
      hmem::total_length(local, count) < remote.length)
    return -FI_EINVAL;
  const Permission permission =
      call == CmaCall::read ? x_cma.read.permission : x_cma.write.permission;
  if (permission == Permission::denied && x_cma_settled) return -FI_EOPNOTSUPP;
  if (permission != Permission::allowed || !x_in || !out_up() || ending()) return -FI_EBUSY;
  Borrowing& borrowing = x_out->borrowing;
  borrowing.belongs_to(lent.link);
  if (!borrowing.enter()) return -FI_EBUSY;
  int error = 0;
  if (remote.length <= kAtOnce) {
    const iovec there{remote_address(lent.address + remote.offset), remote.length};
    error =
        move_by_cma(x_core.calls(), call, x_cma, {local, count}, {&there, 1}, 0, remote.length,
                    call == CmaCall::read ? x_counters.cma_read_bytes : x_counters.cma_write_bytes);
  }
  borrowing.leave();
  if (remote.length > kAtOnce)
    return x_in->access(call, lent, remote.offset, local, count, remote.length, token);
  // Whose memory it was is not known while the pid may have been another's: the link will end.
  if (error == ESRCH || (error == 0 && !x_cma.was_called())) return -FI_EBUSY;
  if (error == 0) return kDone;
  if (classify(error) == Failure::permission) deny(x_cma, call, error, x_counters);
  return -FI_EOPNOTSUPP;
}

/// Who does not poll is not disturbed.
void ShmLink::ask_for_help() noexcept {
  if (!out_up()) return;
  x_out->control().help.store(1, std::memory_order_release);
  x_out->chunk().ready.fetch_or(uint64_t(1) << x_out->ring, std::memory_order_acq_rel);
}

void ShmLink::help() noexcept {
  if (!x_lent || !out_up() || begin_bulk()) return;
  if (x_out->bulk->active()) x_core.add_bulk_out(*this);
}

}  // namespace erdma::transport::shm
