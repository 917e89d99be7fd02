#include "transport/shm/bulk_shared.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"

namespace erdma::transport::shm {
namespace {

struct WireMemory {
  KeyHead head;
  uint64_t length;
  struct {
    uint64_t address, length;
  } iov[kMaxIov];
};
static_assert(sizeof(WireMemory) == 80 && sizeof(WireMemory) <= RemoteKey::kMaxBytes);
static_assert(std::is_trivially_copyable_v<WireMemory>);

/// In KeyHead::count.
constexpr uint8_t kTimed = 0x80;

constexpr size_t wire_bytes(size_t count) noexcept {
  return 16 + 16 * count;
}

}  // namespace

bool plausible(const iovec* iov, size_t count, uint64_t length) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(iov[i].iov_base);
    uintptr_t end = 0;
    if (__builtin_add_overflow(address, iov[i].iov_len, &end)) return false;
    if (address == 0 && iov[i].iov_len != 0) return false;
  }
  const size_t total = hmem::total_length(iov, count);
  return total != SIZE_MAX && total >= length;
}

void encode(const SharedMemory& memory, RemoteKey& remote_key) noexcept {
  WireMemory wire{};
  wire.head = {KeyKind::readable, uint8_t(memory.count | (memory.timed ? kTimed : 0)),
               memory.generation, memory.index};
  wire.length = memory.length;
  for (size_t i = 0; i < memory.count; ++i)
    wire.iov[i] = {reinterpret_cast<uintptr_t>(memory.iov[i].iov_base), memory.iov[i].iov_len};
  remote_key.put(wire, wire_bytes(memory.count));
}

int decode(const RemoteKey& remote_key, SharedMemory& memory) noexcept {
  WireMemory wire{};
  if (remote_key.kind() != KeyKind::readable || remote_key.size < wire_bytes(0) ||
      remote_key.size > sizeof wire)
    return -FI_EINVAL;
  std::memcpy(&wire, remote_key.bytes, remote_key.size);
  const KeyHead& head = wire.head;
  const auto count = uint8_t(head.count & ~kTimed);
  if (count > kMaxIov || remote_key.size != wire_bytes(count)) return -FI_EINVAL;
  memory.index = head.index;
  memory.generation = head.generation;
  memory.count = count;
  memory.timed = count != head.count;
  memory.length = wire.length;
  for (size_t i = 0; i < count; ++i)
    memory.iov[i] = {remote_address(wire.iov[i].address), wire.iov[i].length};
  return plausible(memory.iov, memory.count, memory.length) ? 0 : -FI_EINVAL;
}

util::PoolHandle name_of(const RemoteKey& remote_key) noexcept {
  KeyHead head{};
  if (remote_key.kind() == KeyKind::readable && remote_key.size >= sizeof head)
    std::memcpy(&head, remote_key.bytes, sizeof head);
  return {head.index, head.generation};
}

void publish_read_time(BulkShared& page, const SharedMemory& memory,
                       uint64_t nanoseconds) noexcept {
  const auto time = uint32_t(std::clamp<uint64_t>(nanoseconds, 1, UINT32_MAX));
  page.read_time.store(pack(ReadTime{uint32_t(memory.id()), time}), std::memory_order_relaxed);
}

void copy_in(void* slot, const iovec* iov, size_t count, uint64_t offset, size_t length,
             CopyFunction copy) noexcept {
  auto* to = static_cast<std::byte*>(slot);
  hmem::for_each_part(
      iov, count, offset, length,
      [&](std::byte* part, size_t before, size_t bytes) { copy(to + before, part, bytes); });
}

void copy_out(const iovec* iov, size_t count, uint64_t offset, const void* slot, size_t length,
              CopyFunction copy) noexcept {
  auto* from = static_cast<const std::byte*>(slot);
  hmem::for_each_part(
      iov, count, offset, length,
      [&](std::byte* part, size_t before, size_t bytes) { copy(part, from + before, bytes); });
}

Failure classify(int error) noexcept {
  switch (error) {
    case ENOMEM:
    case EINTR:
    case EAGAIN:
      return Failure::transient;
    case EPERM:
    case EACCES:
    case ENOSYS:
      return Failure::permission;
    default:  // includes ESRCH: the probe proved the pid, so the peer has just died
      return Failure::memory;
  }
}

namespace {

/// Reads the nonce alone. A process that lost its nonce by death or exec never has it again, so the
/// nonce proves all earlier calls on this peer as well. Returns 0, the positive errno of the call,
/// or EFAULT if another process has the pid, or the process has executed a program.
int ask_for_nonce(CmaCalls& calls, const CmaPeer& peer) noexcept {
  uint64_t nonce = 0;
  const iovec here{&nonce, sizeof nonce};
  const iovec there{remote_address(peer.identity().nonce_address), sizeof nonce};
  ssize_t count = 0;
  unsigned retries = 0;
  do {
    count = calls.readv(peer.pid, &here, 1, &there, 1);
  } while (count < 0 && classify(int(-count)) == Failure::transient &&
           retries++ < kTransientRetries);
  if (count < 0) return int(-count);
  return count == ssize_t(sizeof nonce) && nonce == peer.identity().nonce ? 0 : EFAULT;
}

/// Reads the peer's memory and then its nonce in one call, because one call addresses one process.
/// Only the requested bytes count in the return value. A read that ended between the two is
/// suspicious: the peer's nonce is always mapped, while a program that the peer executes may have
/// memory at the same addresses as the peer had, and none where the nonce was. The pidfd does not
/// report an exec, so only the nonce can clear this up.
ssize_t read_with_nonce(CmaCalls& calls, const CmaPeer& peer, iovec* here, size_t heres,
                        iovec* there, size_t theres, size_t length, Target& target) noexcept {
  uint64_t nonce = 0;
  here[heres] = {&nonce, sizeof nonce};
  there[theres] = {remote_address(peer.identity().nonce_address), sizeof nonce};
  const ssize_t count = calls.readv(peer.pid, here, heres + 1, there, theres + 1);
  if (count <= 0) return count;
  const bool whole = size_t(count) == length + sizeof nonce;
  if (size_t(count) < length)
    target = std::max(target, Target::unknown);
  else if (whole ? nonce != peer.identity().nonce : ask_for_nonce(calls, peer) != 0)
    target = Target::other_process;
  return std::min(count, ssize_t(length));
}

/// The peer existed before the call. If it does not any more, its nonce proves the call. A process
/// that has ended since a write has no memory any more that lacks the bytes.
ssize_t call_while_it_exists(CmaCalls& calls, CmaCall call, const CmaPeer& peer, IovList here,
                             IovList there, Target& target) noexcept {
  const ssize_t count = call == CmaCall::read
                            ? calls.readv(peer.pid, here.iov, here.count, there.iov, there.count)
                            : calls.writev(peer.pid, here.iov, here.count, there.iov, there.count);
  if (count <= 0 || peer.exists()) return count;
  const int error = ask_for_nonce(calls, peer);
  if (error == 0 || (call == CmaCall::write && error == ESRCH)) return count;
  const bool may_be_peer = call == CmaCall::write && classify(error) == Failure::permission;
  target = std::max(target, may_be_peer ? Target::unknown : Target::other_process);
  return count;
}

}  // namespace

int move_by_cma(CmaCalls& calls, CmaCall call, const CmaPeer& peer, IovList local, IovList remote,
                uint64_t offset, size_t length, uint64_t& moved, Target& target) noexcept {
  iovec here[kMaxIov + 1];
  iovec there[kMaxIov + 1];
  unsigned retries = 0;
  const bool proves = call == CmaCall::read && peer.identity().nonce != 0;
  while (length > 0) {
    const bool exists = peer.exists();
    if (!exists && (proves ? peer.suspended() : !peer.may_be_called())) return ESRCH;
    const size_t heres = hmem::slice(local.iov, local.count, offset, length, here);
    const size_t theres = hmem::slice(remote.iov, remote.count, offset, length, there);
    ssize_t count = 0;
    if (exists) {
      count = call_while_it_exists(calls, call, peer, {here, heres}, {there, theres}, target);
    } else if (proves) {
      count = read_with_nonce(calls, peer, here, heres, there, theres, length, target);
    } else {
      target = std::max(target, Target::unknown);
      count = call == CmaCall::read ? calls.readv(peer.pid, here, heres, there, theres)
                                    : calls.writev(peer.pid, here, heres, there, theres);
    }
    // the peer has exited and its pid belongs to another process, or it has executed a program
    if (target == Target::other_process) return ESRCH;
    if (count > 0) {
      const size_t bytes = std::min(size_t(count), length);
      offset += bytes;
      length -= bytes;
      moved += bytes;
      continue;
    }
    const int error = count < 0 ? int(-count) : EFAULT;
    if (classify(error) != Failure::transient || ++retries > kTransientRetries) return error;
  }
  return 0;
}

bool was_reached(CmaCalls& calls, CmaCall call, const CmaPeer& peer, Target target) noexcept {
  if (peer.was_called(target)) return true;
  return call == CmaCall::write && target == Target::unknown && ask_for_nonce(calls, peer) == ESRCH;
}

}  // namespace erdma::transport::shm
