#include "hmem/copy.h"
#include "transport/verbs/connection.h"
#include "transport/verbs/core.h"
#include "transport/verbs/link.h"

/// The short way to a peer's memory: a work request, and what it leaves in the send queue's
/// account. A transfer is made only of what failed.
namespace erdma::transport::verbs {

bool VerbsLink::resolve(const Exposure& memory, DeviceAddress& first) noexcept {
  RemoteMemory named;
  if (!decode(memory, named) || named.staged || named.count != 1) return false;
  first = {named.pieces[0].address, named.pieces[0].rkey};
  return true;
}

int VerbsLink::read_short(DeviceAddress remote, void* local, size_t length,
                          uint64_t token) noexcept {
  return x_sender ? x_sender->read_short(remote, local, length, token) : -FI_EAGAIN;
}

int VerbsLink::write_short(DeviceAddress remote, const void* local, size_t length,
                           uint64_t token) noexcept {
  return x_sender ? x_sender->write_short(remote, local, length, token) : -FI_EAGAIN;
}

inline int Connection::read_short(DeviceAddress remote, void* local, size_t length,
                                  uint64_t token) noexcept {
  if (x_due || x_send.room() <= kReservedPlaces || x_reads >= x_core.reads_in_flight()) [[unlikely]]
    return -FI_EAGAIN;
  const uint32_t slot = x_sinks.acquire_short(x_core.device());
  if (slot == ReadSinks::kNone) [[unlikely]]
    return -FI_EAGAIN;
  ibv_sge sge{uint64_t(x_sinks.bytes(slot)), uint32_t(length), x_sinks.lkey(slot)};
  ibv_send_wr request;
  request.sg_list = &sge;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = 0;
  request.wr.rdma = {remote.address, remote.key};
  if (x_chained) [[unlikely]]
    flush_chain();
  Work& work = x_send.stage(request, true);
  work.type = Work::Type::read;
  work.bytes = uint32_t(length);
  work.block.slab = slot;
  work.local = local;
  work.token = token;
  if (const int rc = submit(request)) [[unlikely]] {
    x_sinks.release(slot);
    return rc;
  }
  ++x_reads;
  return 0;
}

inline int Connection::write_short(DeviceAddress remote, const void* local, size_t length,
                                   uint64_t token) noexcept {
  if (x_due || x_send.room() <= kReservedPlaces || length > x_inline) [[unlikely]]
    return -FI_EAGAIN;
  ibv_sge sge{uint64_t(local), uint32_t(length), 0};
  ibv_send_wr request;
  request.sg_list = &sge;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_INLINE;
  request.wr.rdma = {remote.address, remote.key};
  if (x_chained) [[unlikely]]
    flush_chain();
  Work& work = x_send.stage(request, true);
  work.type = Work::Type::write;
  work.bytes = uint32_t(length);
  work.token = token;
  return submit(request);
}

/// What is staged. -FI_EAGAIN: nothing happened.
inline int Connection::submit(ibv_send_wr& request) noexcept {
  request.num_sge = 1;
  if (const int rc = x_send.post(request)) [[unlikely]] {
    x_send.unstage();
    return refused(rc);
  }
  ++x_shorts;
  used = x_core.polls();
  return 0;
}

void Connection::on_short(const Work& work, bool success, Sink& sink) noexcept {
  const uint64_t token = work.token;
  const uint32_t bytes = work.bytes;
  --x_shorts;
  if (work.type == Work::Type::read) {
    const uint32_t slot = work.block.slab;
    if (success) {
      hmem::copy_short(work.local, x_sinks.bytes(slot), bytes);
      x_core.counters().read_bytes += bytes;
    }
    --x_reads;
    x_sinks.release(slot);
  } else if (success) {
    x_core.counters().write_bytes += bytes;
  }
  if (!success) [[unlikely]]
    return keep_failed(token, sink);
  sink.on_done(token, 0);
}

/// Ends with its connection, which will know why.
void Connection::keep_failed(uint64_t token, Sink& sink) noexcept {
  Transfer* const failed = x_core.transfers().acquire();
  if (!failed) return sink.on_done(token, -FI_EIO);
  failed->owner = this;
  failed->token = token;
  failed->bounces = true;
  x_waiting.push_back(*failed);
}

}  // namespace erdma::transport::verbs
