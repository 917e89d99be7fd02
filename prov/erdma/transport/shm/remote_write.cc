#include <algorithm>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/core.h"
#include "transport/shm/link.h"
#include "util/peer_status.h"

/// Link::write(): the writer exposes its memory and asks the owner of the target to read it. So the
/// owner validates its own exposure, and one bulk engine moves bytes in either case.
namespace erdma::transport::shm {
namespace {

/// Names a WriteTarget of the process that made it. Its size tells it from a readable exposure.
struct TargetName {
  uint32_t index;
  uint16_t generation;
  uint16_t zero;
  uint32_t magic;
};
constexpr uint32_t kTargetMagic = 0x74677277;
static_assert(sizeof(TargetName) == 12);

/// Header of the three entries.
struct WriteEntry {
  uint64_t length = 0;
  uint32_t index = 0;  ///< of the writer's PendingWrite
  uint16_t generation = 0;
  uint16_t zero = 0;
  int32_t status = 0;
  uint32_t zeros[3] = {};
};
static_assert(sizeof(WriteEntry) == kHeaderBytes);

bool copy_exposure(const RingEntry& entry, Exposure& exposure) noexcept {
  if (entry.length > Exposure::kMaxBytes) return false;
  exposure.size = uint8_t(entry.length);
  std::memcpy(exposure.bytes, entry.payload, entry.length);
  return true;
}

iovec whole(const Exposure& exposure) noexcept {
  return {const_cast<std::byte*>(exposure.bytes), exposure.size};
}

/// Keeps on_done() upcalls for the next poll.
struct Deferring final : Sink {
  explicit Deferring(Core& owner) noexcept : core(owner) {}
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t token, int status) noexcept override { core.defer_done(token, status); }
  void on_link_down(Link&, int) noexcept override {}
  Core& core;
};

}  // namespace

ShmLink::RemoteWrites* ShmLink::remote_writes() noexcept {
  if (!x_remote) x_remote.reset(new (std::nothrow) RemoteWrites);
  return x_remote.get();
}

bool ShmLink::is_target(const Exposure& exposure) noexcept {
  return exposure.size == sizeof(TargetName);
}

util::PoolHandle ShmLink::target_handle(const Exposure& exposure) noexcept {
  TargetName name;
  std::memcpy(&name, exposure.bytes, sizeof(name));
  if (name.magic != kTargetMagic) return {};
  return {name.index, name.generation};
}

int ShmLink::expose_target(const iovec* memory, size_t count, size_t length,
                           Exposure& exposure) noexcept {
  if (count > kMaxIov || hmem::total_length(memory, count) < length) return -FI_EINVAL;
  WriteTarget* target = remote_writes() ? x_remote->targets.acquire() : nullptr;
  if (!target) return -FI_ENOMEM;
  std::copy_n(memory, count, target->memory);
  target->count = count;
  target->length = length;
  const util::PoolHandle handle = x_remote->targets.handle(*target);
  const TargetName name{handle.index, handle.generation, 0, kTargetMagic};
  exposure.size = sizeof(name);
  std::memcpy(exposure.bytes, &name, sizeof(name));
  return 0;
}

void ShmLink::withdraw_target(const Exposure& exposure) noexcept {
  WriteTarget* target = x_remote ? x_remote->targets.find(target_handle(exposure)) : nullptr;
  if (!target) return;
  // Rare: a write is under way into memory that is being taken back. Chunks that the peer has begun
  // to write cannot be stopped, so the transfers of this link are ended, which waits for those.
  if (target->active && x_in) {
    Deferring deferring(x_core);
    x_in->await_settled();
    x_in->abort_bulk(deferring, -FI_ECANCELED);
  }
  x_remote->targets.release(*target);
}

int ShmLink::write(const Exposure& remote, const iovec* local, size_t count, size_t length,
                   uint64_t token) noexcept {
  if (!is_target(remote)) return -FI_EINVAL;
  if (!x_ring) return not_ready();
  if (!x_ring->room_for(2)) return no_room(0);
  PendingWrite* write = remote_writes() ? x_remote->writes.acquire() : nullptr;
  if (!write) return -FI_ENOMEM;
  write->token = token;
  if (const int rc = expose(local, count, length, Access::remote_read, write->source)) {
    x_remote->writes.release(*write);
    return rc;
  }
  x_remote->written.push_back(*write);
  const util::PoolHandle handle = x_remote->writes.handle(*write);
  const WriteEntry header{length, handle.index, handle.generation, 0, 0, {}};
  const iovec target = whole(remote);
  const iovec source = whole(write->source);
  (void)x_ring->push(Kind::write_target, &header, &target, 1, target.iov_len);
  (void)x_ring->push(Kind::write_source, &header, &source, 1, source.iov_len);
  after_push();
  return 0;
}

bool ShmLink::on_write_entry(const RingEntry& entry, Sink& sink) noexcept {
  if (!remote_writes()) {
    x_core.break_link(*this, "out of memory for what it writes");
    return true;
  }
  if (entry.kind == Kind::write_done) {
    on_write_done(entry, sink);
    return true;
  }
  if (entry.kind == Kind::write_target) {
    x_remote->target_is_named = copy_exposure(entry, x_remote->target_named);
    return x_remote->target_is_named;
  }
  Exposure source;
  WriteEntry header;
  std::memcpy(&header, entry.header, sizeof(header));
  if (!x_remote->target_is_named || !copy_exposure(entry, source)) return false;
  // No honest peer has more writes under way than it can expose.
  if (x_remote->replies.size() >= kMaxExposures) return false;
  x_remote->target_is_named = false;
  const util::PoolHandle write{header.index, header.generation};
  if (const int rc = start_remote_write(source, header.length, write)) reply_write(write, {}, rc);
  return true;
}

int ShmLink::start_remote_write(const Exposure& source, size_t length,
                                util::PoolHandle write) noexcept {
  if (!is_target(x_remote->target_named) || is_target(source)) return -FI_EINVAL;
  const util::PoolHandle handle = target_handle(x_remote->target_named);
  WriteTarget* target = x_remote->targets.find(handle);
  if (!target || length > target->length) return -FI_EACCES;
  const RemoteWrite remote{write, handle};
  const int rc = x_in->read(source, target->memory, target->count, length, 0, &remote);
  if (!rc) ++target->active;
  return rc;
}

void ShmLink::reply_write(util::PoolHandle write, util::PoolHandle target_name, int status) noexcept
    try {
  WriteTarget* target = x_remote->targets.find(target_name);
  if (target && target->active) --target->active;
  x_remote->replies.push_back({write, status});
  if (!flush_replies()) x_core.add_replying(*this);
} catch (const std::bad_alloc&) {
  x_core.break_link(*this, "out of memory for an answer to it");
}

bool ShmLink::flush_replies() noexcept {
  while (x_remote && !x_remote->replies.empty()) {
    if (!x_ring) {
      const int rc = not_ready();
      return rc != -FI_EAGAIN;
    }
    const Reply& reply = x_remote->replies.front();
    const WriteEntry header{0, reply.write.index, reply.write.generation, 0, reply.status, {}};
    const iovec empty{nullptr, 0};
    if (!x_ring->push(Kind::write_done, &header, &empty, 1, 0)) return false;
    after_push();
    x_remote->replies.erase(x_remote->replies.begin());
  }
  return true;
}

void ShmLink::on_write_done(const RingEntry& entry, Sink& sink) noexcept {
  WriteEntry header;
  std::memcpy(&header, entry.header, sizeof(header));
  PendingWrite* write = x_remote->writes.find({header.index, header.generation});
  if (!write) return;
  const uint64_t token = write->token;
  withdraw(write->source);
  x_remote->written.erase(*write);
  x_remote->writes.release(*write);
  sink.on_done(token, util::peer_transfer_status(header.status));
}

void ShmLink::fail_writes(Sink& sink, int status) noexcept {
  if (!x_remote) return;
  while (PendingWrite* write = x_remote->written.pop_front()) {
    const uint64_t token = write->token;
    withdraw(write->source);
    x_remote->writes.release(*write);
    sink.on_done(token, status);
  }
}

}  // namespace erdma::transport::shm
