#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/read_buffers.h"
#include "transport/verbs/transfers.h"

namespace erdma::transport::verbs {

/// Small accesses to a peer's memory without its processor: one work request each, posted at once
/// and in order. Accesses of the fast path have a Transfer only if they fail.
class DirectAccess {
 public:
  DirectAccess(Resources& shared, PacketSender& sender, Transfers& transfers,
               ConnectionHost& host) noexcept
      : x_shared(shared),
        x_counters(&shared.counters),
        x_sender(sender),
        x_transfers(transfers),
        x_host(host) {}

  void count_in(Counters& counters) noexcept { x_counters = &counters; }
  /// True if post() accepts an access of this size.
  bool takes(size_t length, bool is_read) noexcept;
  /// Posts the whole transfer, which must be in the list of transfers. -FI_EAGAIN: nothing
  /// happened.
  [[nodiscard]] int post(Transfer& transfer) noexcept;
  void on_direct(const Work& work, bool success, Sink& sink) noexcept;

  /// See FastAccess.
  [[nodiscard]] int get(DeviceAddress remote, void* local, size_t length, uint64_t token) noexcept;
  [[nodiscard]] int put(DeviceAddress remote, const void* local, size_t length,
                        uint64_t token) noexcept;
  void on_fast(const Work& work, bool success, Sink& sink) noexcept;
  /// No access of the fast path is in flight.
  bool idle() const noexcept { return x_fast_in_flight == 0; }

 private:
  bool acquire(const Transfer& transfer, BlockPool::Block& block) noexcept;
  void release(const Transfer& transfer, const BlockPool::Block& block) noexcept;
  int post_request(Transfer& transfer) noexcept;
  bool has_room(uint32_t requests) noexcept {
    return !x_sender.due().any() &&
           x_sender.queue().room() >= PacketSender::kReservedPlaces + requests;
  }
  int submit(ibv_send_wr& request) noexcept;
  void keep_failed(uint64_t token, Sink& sink) noexcept;

  Resources& x_shared;
  Counters* x_counters;  ///< those of x_shared until the peer is known
  PacketSender& x_sender;
  Transfers& x_transfers;
  ConnectionHost& x_host;
  ReadBuffers x_read_buffers;
  unsigned x_fast_in_flight = 0;  ///< reads and writes of the fast path, in flight
};

[[gnu::always_inline]] inline int DirectAccess::get(DeviceAddress remote, void* local,
                                                    size_t length, uint64_t token) noexcept {
  if (!has_room(1) || !x_transfers.may_read() || !x_sender.post_chained()) [[unlikely]]
    return -FI_EAGAIN;
  const uint32_t slot = x_read_buffers.acquire_short(x_shared.device);
  if (slot == ReadBuffers::kNone) [[unlikely]]
    return -FI_EAGAIN;
  ibv_sge sge{uint64_t(x_read_buffers.bytes(slot)), uint32_t(length), x_read_buffers.lkey(slot)};
  ibv_send_wr request;
  request.sg_list = &sge;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = 0;
  request.wr.rdma = {remote.address, remote.key};
  Work& work = x_sender.queue().append(request, true);
  work.type = Work::Type::read;
  work.bytes = uint32_t(length);
  work.block.slab = slot;
  work.local = local;
  work.token = token;
  if (const int rc = submit(request)) [[unlikely]] {
    x_read_buffers.release(slot);
    return rc;
  }
  x_transfers.read_begins();
  return 0;
}

inline int DirectAccess::put(DeviceAddress remote, const void* local, size_t length,
                             uint64_t token) noexcept {
  if (!has_room(1) || length > x_sender.inline_bytes || !x_sender.post_chained()) [[unlikely]]
    return -FI_EAGAIN;
  ibv_sge sge{uint64_t(local), uint32_t(length), 0};
  ibv_send_wr request;
  request.sg_list = &sge;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_INLINE;
  request.wr.rdma = {remote.address, remote.key};
  Work& work = x_sender.queue().append(request, true);
  work.type = Work::Type::write;
  work.bytes = uint32_t(length);
  work.token = token;
  return submit(request);
}

/// Posts a request of the fast path. -FI_EAGAIN: nothing happened.
inline int DirectAccess::submit(ibv_send_wr& request) noexcept {
  request.num_sge = 1;
  if (const int rc = x_sender.queue().post(request)) [[unlikely]]
    return x_sender.refused(rc);
  ++x_fast_in_flight;
  x_sender.touch();
  return 0;
}

}  // namespace erdma::transport::verbs
