#include "transport/shm/direct_access.h"

#include <cerrno>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/link_context.h"
#include "transport/shm/mail.h"

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

// What was denied at run time stays so.
void DirectAccess::learn(const Mail& mail, bool first) noexcept {
  // A verdict on one call does not repeat the warning about the other.
  const bool reported = !first && x_peer.read.reported && x_peer.read.error == mail.cma.read.error;
  x_peer = mail.cma;
  if (reported) x_peer.read.reported = true;
  x_settled = mail.settled;
  if (mail.settled) report_refusals(x_peer, x_context.counters);
}

int DirectAccess::lend(const iovec& memory, bool for_reads, bool for_writes,
                       Exposure& exposure) noexcept {
  if (!x_lent) x_lent.reset(new (std::nothrow) LentTable);
  if (!x_lent) return -FI_ENOMEM;
  if (x_out.bulk()) x_out.bulk()->lends(x_lent.get());
  LentMemory lent = x_lent->lend(memory, for_reads, for_writes);
  lent.link = x_link_number;
  exposure.size = sizeof(lent);
  std::memcpy(exposure.bytes, &lent, sizeof(lent));
  return 0;
}

void DirectAccess::recall(const Exposure& exposure) noexcept {
  if (exposure.size != sizeof(LentMemory)) return;
  ++x_recalls_made;
  if (x_in) x_in->lending().recall();
  const uint64_t id = x_lent ? x_lent->take_back(decode(exposure)) : 0;
  if (id && x_out.bulk()) x_out.bulk()->taken_back(id);
}

void DirectAccess::recalled() noexcept {
  ++x_recalls_heard;
  if (x_out.up()) x_out.borrowing().recalled();
}

int DirectAccess::access(CmaCall call, const RemoteRange& remote, const iovec* local, size_t count,
                         uint64_t token) noexcept {
  if (!x_context.options.cma) return -FI_EOPNOTSUPP;
  if (remote.memory.size != sizeof(LentMemory) || remote.length == 0) return -FI_EINVAL;
  const LentMemory lent = decode(remote.memory);
  if (!contains(lent, remote) || count > kMaxIov ||
      hmem::total_length(local, count) < remote.length)
    return -FI_EINVAL;
  const Permission permission = x_peer.verdict(call).permission;
  if (permission == Permission::denied && x_settled) return -FI_EOPNOTSUPP;
  if (permission != Permission::allowed || !x_in || !x_out.up() || x_out.stopped())
    return -FI_EBUSY;
  Borrowing& borrowing = x_out.borrowing();
  borrowing.belongs_to(lent.link);
  if (!borrowing.enter()) return -FI_EBUSY;
  int error = 0;
  Counters& counters = x_context.counters;
  if (remote.length <= kAtOnce) {
    const iovec there{remote_address(lent.address + remote.offset), remote.length};
    error =
        move_by_cma(x_context.calls, call, x_peer, {local, count}, {&there, 1}, 0, remote.length,
                    call == CmaCall::read ? counters.cma_read_bytes : counters.cma_write_bytes);
  }
  borrowing.leave();
  if (remote.length > kAtOnce)
    return x_in->access(call, lent, remote.offset, local, count, remote.length, token);
  // Whose memory it was is not known while the pid may have been another's: the link will end.
  if (error == ESRCH || (error == 0 && !x_peer.was_called())) return -FI_EBUSY;
  if (error == 0) return kDone;
  if (classify(error) == Failure::permission) deny(x_peer, call, error, counters);
  return -FI_EOPNOTSUPP;
}

void DirectAccess::end() noexcept {
  if (x_out.bulk()) x_out.bulk()->lends(nullptr);
  x_lent.reset();
  x_recalls_heard = x_recalls_made = 0;
  ++x_link_number;
}

}  // namespace erdma::transport::shm
