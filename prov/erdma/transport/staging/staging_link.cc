#include "transport/staging/staging_link.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

namespace erdma::transport::staging {
namespace {

/// Payloads up to this size are staged on the stack.
constexpr size_t kOnStack = 4096;

/// The memory is not initialised: pages that no copy touches cost nothing.
std::unique_ptr<std::byte[]> host_memory(size_t length) noexcept {
  return std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[length]);
}

void describe(Transfer& transfer, const iovec* memory, size_t count, size_t length) noexcept {
  std::copy_n(memory, count, transfer.memory);
  transfer.count = count;
  transfer.length = length;
}

bool same(const RemoteKey& one, const RemoteKey& other) noexcept {
  return one.size == other.size && std::memcmp(one.bytes, other.bytes, one.size) == 0;
}

}  // namespace

int StagingLink::send(const Header& header, const iovec* payload, size_t count, size_t length,
                      SendHint hint) noexcept {
  if (!device_memory().any_device(payload, count))
    return x_inner.send(header, payload, count, length, hint);
  std::byte small[kOnStack];
  std::unique_ptr<std::byte[]> large;
  if (length > sizeof(small) && !(large = host_memory(length))) return x_staging.lack.try_later();
  std::byte* const copy = large ? large.get() : small;
  if (const int rc = device_memory().gather(copy, payload, count, 0, length)) return rc;
  const iovec staged{copy, length};
  const int rc = x_inner.send(header, &staged, 1, length, hint);
  if (rc == 0) x_counters.staged_bytes += length;
  return rc;
}

/// Bytes that the peer does not write must stay unchanged, so the copy starts with the contents of
/// the memory.
int StagingLink::share(const iovec* memory, size_t count, size_t length, Access access,
                       RemoteKey& remote_key) noexcept try {
  DirectSource* const direct = x_staging.direct;
  if (!device_memory().any_device(memory, count))
    return x_inner.share(memory, count, length, access, remote_key);
  if (direct && direct->can_share(memory, count, access)) {
    const int rc = x_inner.share(memory, count, length, access, remote_key);
    if (rc == 0) x_counters.direct_bytes += length;
    return rc;
  }
  if (access == Access::refusable_read && share_ipc(memory, count, remote_key)) return 0;
  if (count > kMaxIov) return -FI_EINVAL;
  SharedMemory shared;
  describe(shared.transfer, memory, count, length);
  shared.transfer.inbound = access == Access::remote_write;
  shared.transfer.host = host_memory(length);
  if (!shared.transfer.host) return -FI_ENOMEM;
  x_shared.reserve(x_shared.size() + 1);
  const iovec staged{shared.transfer.host.get(), length};
  if (const int rc = x_inner.share(&staged, 1, length, access, remote_key)) return rc;
  // The copy is filled now: no peer knows of it yet, and after an -FI_EAGAIN of share() the work
  // would have been in vain.
  if (const int rc = device_memory().gather(shared.transfer.host.get(), memory, count, 0, length)) {
    x_inner.revoke(remote_key);
    remote_key.size = 0;
    return rc;
  }
  shared.remote_key = remote_key;
  x_shared.push_back(std::move(shared));
  x_counters.staged_bytes += length;
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

/// Offers memory of one allocation, and only over a link that has been up: a link that never came
/// up may be replaced by another link, which knows no offers.
bool StagingLink::share_ipc(const iovec* memory, size_t count, RemoteKey& remote_key) noexcept {
  if (!x_staging.cuda || !optional().files || count != 1 || !x_inner.was_up()) return false;
  if (x_pause > 0) return --x_pause, false;
  IpcKey made{};
  if (x_staging.cuda->ipc().share(memory->iov_base, made.handle, made.offset) != 0) return false;
  if (made.handle.kind == hmem::IpcHandle::Kind::file) {
    // The message may reach into the next mapping, which is another file.
    const uint64_t size = hmem::FileName::of(made.handle).size;
    if (made.offset + memory->iov_len > size) return false;
    if (!x_passed.name(*optional().files, *x_staging.cuda, made.handle)) return false;
  }
  made.encode(remote_key);
  return true;
}

/// After a refused offer later ones may be accepted, so the link offers again after 1, 2, 4, ...
/// messages. When the endpoint closes, a copy stays until this link is destroyed: a NIC may access
/// it until its connections have ended, because a registration in the cache keeps its key.
void StagingLink::revoke_early(const RemoteKey& remote_key, Early why) noexcept {
  constexpr unsigned kLongestPause = 256;
  const bool refusable = remote_key.is_refusable();
  if (why == Early::closing && !refusable) return x_inner.revoke_early(remote_key, why);
  if (why == Early::closing || !refusable) return (void)revoke(remote_key);
  x_passed.answered(IpcKey::decode(remote_key).handle, false);
  x_next_pause = std::min(std::max(x_next_pause * 2, 1u), kLongestPause);
  x_pause = x_next_pause;
}

void StagingLink::forget_peer() noexcept {
  x_mappings.close();
  x_passed.clear();
  x_pause = x_next_pause = 0;
}

int StagingLink::revoke(const RemoteKey& remote_key) noexcept {
  if (remote_key.is_refusable()) {
    x_passed.answered(IpcKey::decode(remote_key).handle, true);
    x_next_pause = 0;
    return 0;
  }
  const int rc = x_inner.revoke(remote_key);
  const auto found = std::find_if(x_shared.begin(), x_shared.end(), [&](const SharedMemory& one) {
    return same(one.remote_key, remote_key);
  });
  if (found == x_shared.end()) return rc;
  const int finished = x_staging.finish(found->transfer, rc);
  std::swap(*found, x_shared.back());
  x_shared.pop_back();
  return finished;
}

int StagingLink::get(const RemoteRange& remote, const iovec* local, size_t count,
                     uint64_t token) noexcept {
  if (remote.memory.is_refusable()) return read_ipc(remote, local, count, token);
  return transfer(remote, local, count, token, true, false);
}

int StagingLink::read_ipc(const RemoteRange& remote, const iovec* local, size_t count,
                          uint64_t token) noexcept {
  FilePassing* const files = optional().files;
  if (count > kMaxIov) return -FI_EINVAL;
  if (!files) return -FI_EOPNOTSUPP;
  const IpcKey key = IpcKey::decode(remote.memory);
  if (!x_staging.cuda) return IpcMappings::decline(key, *files);
  const auto found = std::find_if(local, local + count, [this](const iovec& part) {
    return part.iov_len > 0 && device_memory().is_device(part.iov_base);
  });
  const void* const near = found == local + count ? nullptr : found->iov_base;
  util::Result<Source> from = x_mappings.reach(key, *files, near, remote.length);
  if (!from) return from.error();
  const int rc = x_staging.reads.add(*this, *from, near, local, count, remote.length, token);
  if (rc == 0) x_counters.ipc_bytes += remote.length;
  return rc == -FI_EAGAIN ? x_staging.lack.try_later() : rc;
}

int StagingLink::put(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                     bool until_placed) noexcept {
  return transfer(remote, local, count, token, false, until_placed);
}

/// Replaces the memory of the operation by host memory. If the operation sends, the bytes are
/// copied there.
int StagingLink::stage(Transfer& transfer, const iovec*& local, size_t& count,
                       iovec& staged) noexcept {
  transfer.host = host_memory(transfer.length);
  if (!transfer.host) return -FI_ENOMEM;
  staged = {transfer.host.get(), transfer.length};
  const iovec* const memory = std::exchange(local, &staged);
  const size_t pieces = std::exchange(count, 1);
  return transfer.inbound
             ? 0
             : device_memory().gather(transfer.host.get(), memory, pieces, 0, transfer.length);
}

/// Returns whether this device memory must be staged. The inner transport gets memory that it can
/// access itself as it is, except for accesses to regions.
bool StagingLink::must_stage(const RemoteKey& remote, const iovec* local, size_t count,
                             bool inbound) noexcept {
  return remote.kind() == KeyKind::region || !x_staging.direct ||
         !x_staging.direct->can_move(local, count, remote, inbound);
}

/// A transfer that is not under way afterwards is released.
inline int StagingLink::begin(Transfer& transfer, const RemoteRange& remote, const iovec* local,
                              size_t count, bool until_placed) noexcept {
  const uint64_t ours = x_staging.token_of(transfer);
  int rc = transfer.inbound ? x_inner.get(remote, local, count, ours)
                            : x_inner.put(remote, local, count, ours, until_placed);
  if (rc == 0) return 0;
  if (rc == kDone)
    if (const int finished = x_staging.finish(transfer, 0)) rc = finished;
  x_staging.transfers.release(transfer);
  return rc;
}

/// Every operation gets a Transfer, so all tokens of the inner transport are of one kind.
int StagingLink::transfer(const RemoteRange& remote, const iovec* local, size_t count,
                          uint64_t token, bool inbound, bool until_placed) noexcept {
  if (count > kMaxIov) return -FI_EINVAL;
  Transfer* transfer = x_staging.transfers.acquire();
  if (!transfer) return x_staging.lack.try_later();
  transfer->token = token;
  transfer->inbound = inbound;
  describe(*transfer, local, count, remote.length);
  if (device_memory().any_device(local, count))
    return transfer_device(*transfer, remote, local, count, until_placed);
  return begin(*transfer, remote, local, count, until_placed);
}

int StagingLink::transfer_device(Transfer& transfer, const RemoteRange& remote, const iovec* local,
                                 size_t count, bool until_placed) noexcept {
  const bool stages = must_stage(remote.memory, local, count, transfer.inbound);
  iovec staged{};
  if (const int rc = stages ? stage(transfer, local, count, staged) : 0) {
    x_staging.transfers.release(transfer);
    return rc;
  }
  const int rc = begin(transfer, remote, local, count, until_placed);
  if (rc == 0 || rc == kDone)
    (stages ? x_counters.staged_bytes : x_counters.direct_bytes) += remote.length;
  return rc;
}

/// Staged memory needs no flush: CUDA wrote it. Only memory that the inner transport reaches itself
/// does.
int StagingLink::flush(const iovec* memory, size_t count, uint64_t token) noexcept {
  DirectSource* const direct = x_staging.direct;
  if (!direct || !direct->may_be_written(memory, count)) return 0;
  const int rc = x_staging.flusher.add(memory, count, token);
  if (rc == kFlushing) ++x_counters.flushes;
  return rc;
}

}  // namespace erdma::transport::staging
