#include "transport/shm/remote_writes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/link.h"
#include "transport/shm/link_context.h"
#include "util/peer_status.h"

namespace erdma::transport::shm {
namespace {

/// The header of all three kinds of entry.
struct WriteEntry {
  uint64_t length = 0;
  uint32_t index = 0;  ///< of the writer's Pending
  uint16_t generation = 0;
  uint16_t zero = 0;
  int32_t status = 0;
  uint32_t zeros[3] = {};
};
static_assert(sizeof(WriteEntry) == kHeaderBytes);

bool copy_key(const RingEntry& entry, RemoteKey& remote_key) noexcept {
  if (entry.length > RemoteKey::kMaxBytes) return false;
  remote_key.size = uint8_t(entry.length);
  std::memcpy(remote_key.bytes, entry.payload, entry.length);
  return true;
}

iovec whole(const RemoteKey& remote_key) noexcept {
  return {const_cast<std::byte*>(remote_key.bytes), remote_key.size};
}

/// Keeps on_done() upcalls for the next poll.
struct Deferring final : NullSink {
  explicit Deferring(LinkContext& with) noexcept : context(with) {}
  void on_done(uint64_t token, int status) noexcept override {
    context.attention |= LinkContext::kWork;
    (void)context.deferred.add(token, status);
  }
  LinkContext& context;
};

util::PoolHandle target_handle(const RemoteKey& remote_key) noexcept {
  KeyHead head;
  std::memcpy(&head, remote_key.bytes, sizeof(head));
  return {head.index, head.generation};
}

}  // namespace

bool RemoteWrites::is_target(const RemoteKey& remote_key) noexcept {
  return remote_key.kind() == KeyKind::target && remote_key.size == sizeof(KeyHead);
}

int RemoteWrites::share(const iovec* memory, size_t count, size_t length,
                        RemoteKey& remote_key) noexcept {
  if (count > kMaxIov || hmem::total_length(memory, count) < length) return -FI_EINVAL;
  Target* target = x_targets.acquire();
  if (!target) return -FI_ENOMEM;
  std::copy_n(memory, count, target->memory);
  target->count = count;
  target->length = length;
  const util::PoolHandle handle = x_targets.handle(*target);
  remote_key.put(KeyHead{KeyKind::target, 0, handle.generation, handle.index});
  return 0;
}

void RemoteWrites::revoke(const RemoteKey& remote_key) noexcept {
  Target* target = x_targets.find(target_handle(remote_key));
  if (!target) return;
  // Rare: a write into this memory is under way while it is being revoked. Chunks that the peer has
  // begun to write cannot be stopped, so this waits for their end. Other transfers of the link
  // continue.
  if (target->active && x_link.in()) {
    Deferring deferring(x_context);
    x_link.in()->end_writes(x_targets.handle(*target), deferring, -FI_ECANCELED);
  }
  x_targets.release(*target);
}

int RemoteWrites::start(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
                        uint64_t token) noexcept {
  Pending* write = x_pending.acquire();
  if (!write) return -FI_ENOMEM;
  write->token = token;
  if (const int rc = x_link.share(local, count, length, Access::remote_read, write->source)) {
    x_pending.release(*write);
    return rc;
  }
  x_written.push_back(*write);
  const util::PoolHandle handle = x_pending.handle(*write);
  const WriteEntry header{length, handle.index, handle.generation, 0, 0, {}};
  const iovec target = whole(remote);
  const iovec source = whole(write->source);
  SlotSender& ring = *x_link.out().ring();
  (void)ring.push(Kind::write_target, &header, &target, 1, target.iov_len);
  (void)ring.push(Kind::write_source, &header, &source, 1, source.iov_len);
  x_link.out().announce();
  return 0;
}

RemoteWrites::Taken RemoteWrites::on_entry(const RingEntry& entry, Sink& sink) {
  if (entry.kind == Kind::write_done) {
    on_done(entry, sink);
    return Taken::yes;
  }
  if (entry.kind == Kind::write_target) {
    x_is_named = copy_key(entry, x_named);
    return x_is_named ? Taken::yes : Taken::invalid;
  }
  RemoteKey source;
  WriteEntry header;
  std::memcpy(static_cast<void*>(&header), entry.header, sizeof(header));
  if (!x_is_named || !copy_key(entry, source)) return Taken::invalid;
  // No honest peer has more writes under way than it can share memory for.
  if (x_served + x_replies.size() >= kMaxShared) return Taken::invalid;
  x_replies.reserve(std::bit_ceil(x_served + x_replies.size() + 1));
  const util::PoolHandle write{header.index, header.generation};
  const int rc = serve(source, header.length, write);
  if (rc == -FI_EAGAIN) return Taken::later;
  x_is_named = false;
  if (rc) reply(write, {}, rc);
  return Taken::yes;
}

int RemoteWrites::serve(const RemoteKey& source, size_t length, util::PoolHandle write) noexcept {
  if (!is_target(x_named) || is_target(source)) return -FI_EINVAL;
  const util::PoolHandle handle = target_handle(x_named);
  Target* target = x_targets.find(handle);
  if (!target || length > target->length) return -FI_EACCES;
  const RemoteWrite remote{write, handle};
  const int rc = x_link.in()->read(source, target->memory, target->count, length, 0, &remote);
  if (!rc) ++target->active, ++x_served;
  return rc;
}

void RemoteWrites::reply(util::PoolHandle write, util::PoolHandle target_name,
                         int status) noexcept {
  Target* target = x_targets.find(target_name);
  if (target && target->active) --target->active;
  if (target_name.generation) --x_served;  // no generation: it was refused at once
  x_replies.push_back({write, status});    // on_entry() reserved the space
  if (!send_replies()) x_context.attend(x_context.replying, *this);
}

bool RemoteWrites::send_replies() noexcept {
  if (x_replies.empty()) return true;
  OutChannel& out = x_link.out();
  // Also without memory to connect: the next poll() tries again.
  if (!out.ring()) return x_link.connect() == -FI_ESHUTDOWN;
  const iovec empty{nullptr, 0};
  auto reply = x_replies.begin();
  for (; reply != x_replies.end(); ++reply) {
    const WriteEntry header{0, reply->write.index, reply->write.generation, 0, reply->status, {}};
    if (!out.ring()->push(Kind::write_done, &header, &empty, 1, 0)) break;
    out.announce();
  }
  x_replies.erase(x_replies.begin(), reply);
  return x_replies.empty();
}

void RemoteWrites::on_done(const RingEntry& entry, Sink& sink) noexcept {
  WriteEntry header;
  std::memcpy(static_cast<void*>(&header), entry.header, sizeof(header));
  Pending* write = x_pending.find({header.index, header.generation});
  if (!write) return;
  x_written.erase(*write);
  finish(*write, util::peer_transfer_status(header.status), sink);
}

void RemoteWrites::finish(Pending& write, int status, Sink& sink) noexcept {
  const uint64_t token = write.token;
  x_link.revoke(write.source);
  x_pending.release(write);
  sink.on_done(token, status);
}

void RemoteWrites::fail(Sink& sink, int status) noexcept {
  while (Pending* write = x_written.pop_front()) finish(*write, status, sink);
}

void RemoteWrites::forget_peer() noexcept {
  x_replies.clear();
  x_is_named = false;
}

}  // namespace erdma::transport::shm
