#include "transport/verbs/shared_memory.h"

#include <cstring>

namespace erdma::transport::verbs {
namespace {

/// Four pieces and the head fit into a RemoteKey; therefore lengths have six bytes.
struct [[gnu::packed]] Piece {
  uint64_t address;
  uint32_t rkey;
  uint32_t length_low;
  uint16_t length_high;
};
static_assert(sizeof(KeyHead) + kMaxIov * sizeof(Piece) == RemoteKey::kMaxBytes);

constexpr uint64_t kLengthLimit = uint64_t(1) << 48;

}  // namespace

void encode(const RemoteMemory& memory, RemoteKey& remote_key) noexcept {
  const KeyHead head{memory.bounced  ? KeyKind::bounced
                     : memory.region ? KeyKind::region
                                     : KeyKind::registered,
                     uint8_t(memory.count), memory.handle.generation, memory.handle.index};
  std::memcpy(remote_key.bytes, &head, sizeof(head));
  size_t at = sizeof(head);
  for (size_t i = 0; i < memory.count; ++i, at += sizeof(Piece)) {
    const RemotePiece& from = memory.pieces[i];
    const Piece piece{from.address, from.rkey, uint32_t(from.length), uint16_t(from.length >> 32)};
    std::memcpy(remote_key.bytes + at, &piece, sizeof(piece));
  }
  if (memory.bounced) {
    std::memcpy(remote_key.bytes + at, &memory.length, sizeof(memory.length));
    at += sizeof(memory.length);
  }
  remote_key.size = uint8_t(at);
}

RemoteKey key_of(const RemotePiece& piece) noexcept {
  RemoteMemory memory;
  memory.region = true;
  memory.count = 1;
  memory.length = piece.length;
  memory.pieces[0] = piece;
  RemoteKey result;
  encode(memory, result);
  return result;
}

bool decode(const RemoteKey& remote_key, RemoteMemory& memory) noexcept {
  KeyHead head{};
  if (remote_key.size < sizeof(head) || remote_key.size > RemoteKey::kMaxBytes) return false;
  std::memcpy(&head, remote_key.bytes, sizeof(head));
  memory = {};
  memory.handle = {head.index, head.generation};
  size_t at = sizeof(head);
  if (head.kind == KeyKind::bounced) {
    if (head.count != 0 || remote_key.size != at + sizeof(memory.length)) return false;
    memory.bounced = true;
    std::memcpy(&memory.length, remote_key.bytes + at, sizeof(memory.length));
    return memory.length < kLengthLimit;
  }
  memory.region = head.kind == KeyKind::region;
  if ((!memory.region && head.kind != KeyKind::registered) || head.count == 0 ||
      head.count > (memory.region ? 1 : kMaxIov) ||
      remote_key.size != at + head.count * sizeof(Piece))
    return false;
  memory.count = head.count;
  for (size_t i = 0; i < memory.count; ++i, at += sizeof(Piece)) {
    Piece piece{};
    std::memcpy(&piece, remote_key.bytes + at, sizeof(piece));
    const uint64_t length = uint64_t(piece.length_high) << 32 | piece.length_low;
    if (piece.address + length < piece.address) return false;
    memory.pieces[i] = {piece.address, length, piece.rkey};
    memory.length += length;
  }
  return true;
}

RemoteMemory SharedMemory::named(util::PoolHandle handle) const noexcept {
  RemoteMemory remote{handle, bounced, false, bounced ? 0 : count, length, {}};
  for (size_t i = 0; i < remote.count; ++i)
    remote.pieces[i] = {uint64_t(memory[i].iov_base), memory[i].iov_len, registrations[i].rkey};
  return remote;
}

int register_all(RegistrationCache& cache, const iovec* memory, size_t count, int rights,
                 Registration* registrations) noexcept {
  if (!cache.should_register(memory, count)) return -FI_EOPNOTSUPP;
  for (size_t i = 0; i < count; ++i) {
    if (memory[i].iov_len == 0) continue;
    const int rc = cache.acquire(memory[i].iov_base, memory[i].iov_len, rights, registrations[i]);
    if (!rc) continue;
    release_all(cache, registrations, i);
    return rc;
  }
  return 0;
}

CopyReason copy_reason_of(RegistrationCache& cache, const iovec* memory, size_t count,
                          int rc) noexcept {
  if (cache.refuses_always()) return CopyReason::always;
  if (rc == -FI_ENOMEM) return CopyReason::room;
  const bool is_short = cache.registers_each_time() && !cache.should_register(memory, count);
  return is_short ? CopyReason::too_short : CopyReason::memory;
}

void count_refused(CopyReason reason, uint64_t bytes, NicCounters& counters) noexcept {
  constexpr uint64_t NicCounters::*kByReason[] = {
      &NicCounters::refused_always_bytes, &NicCounters::refused_short_bytes,
      &NicCounters::refused_room_bytes, &NicCounters::refused_memory_bytes};
  counters.*kByReason[size_t(reason)] += bytes;
}

void release_all(RegistrationCache& cache, Registration* registrations, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    if (registrations[i].entry) cache.release(registrations[i]);
    registrations[i] = {};
  }
}

}  // namespace erdma::transport::verbs
