#include "transport/shm/short_reads.h"

#include <rdma/fi_errno.h>

#include "transport/shm/ordering.h"

namespace erdma::transport::shm {

/// False: the sender has revoked the memory, or ended the channel.
bool ShortReads::valid(const SharedMemory& remote) const noexcept {
  return !revoked_by(look_after_reading(x_page.revoked[remote.index]), remote.generation) &&
         !x_memory.sender_left();
}

int ShortReads::read(const SharedMemory& remote, const iovec* local, size_t count,
                     size_t length) noexcept {
  const bool possible =
      length > 0 && length <= longest() && x_paths != PathPolicy::copy && x_peer.may(CmaCall::read);
  if (!possible || !valid(remote)) return -FI_EAGAIN;
  const uint64_t began = remote.timed ? x_clock.now() : 0;
  uint64_t moved = 0;
  Target target = Target::peer;
  const int error = move_by_cma(x_calls, CmaCall::read, x_peer, {local, count},
                                {remote.iov, remote.count}, 0, length, moved, target);
  // A revocation that the second look does not see came after the last byte was read.
  if (error || !valid(remote) || !was_reached(x_calls, CmaCall::read, x_peer, target))
    return -FI_EAGAIN;
  x_counters.cma_read_bytes += moved;
  if (remote.timed) publish_read_time(x_page, remote, x_clock.now() - began);
  return kDone;
}

}  // namespace erdma::transport::shm
