#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <utility>

#include "hmem/copy.h"
#include "transport/verbs/connection.h"
#include "transport/verbs/core.h"
#include "transport/verbs/link.h"
#include "util/error_text.h"
#include "util/log.h"
#include "util/process_epoch.h"

/// Access to a peer's memory without its processor. Short transfers are one work request, posted at
/// once and in order; longer ones are bulk (bulk.cc).
namespace erdma::transport::verbs {
namespace {

/// Copied through a block: less work than to find a registration, as far as copies are cheap.
constexpr size_t kShortBytes = ReadSinks::kLongBytes;

/// Bytes of all open regions of this process.
std::atomic<size_t> g_open_bytes{0};

/// A quarter of what may be locked: without connections of its own the transport has no use for it.
bool may_open(size_t bytes) noexcept {
  static const size_t limit = lockable_bytes();
  if (limit == SIZE_MAX) return true;
  const size_t open = g_open_bytes.load(std::memory_order_relaxed);
  return bytes <= limit / 4 && open <= limit / 4 - bytes;
}

/// A region of the application's, with its rights and no more: the cache's have all of them.
class VerbsMemory final : public OpenMemory {
 public:
  explicit VerbsMemory(MemoryRegion region) noexcept : x_region(std::move(region)) {
    g_open_bytes.fetch_add(x_region->length, std::memory_order_relaxed);
  }
  ~VerbsMemory() override {
    g_open_bytes.fetch_sub(x_region->length, std::memory_order_relaxed);
    if (x_epoch != util::process_epoch()) (void)x_region.release();  // the parent's
  }
  void describe(Exposure& exposure) const noexcept override {
    RemoteMemory named;
    named.count = 1;
    named.length = x_region->length;
    named.pieces[0] = {uint64_t(x_region->addr), x_region->length, x_region->rkey};
    encode(named, exposure);
  }

 private:
  MemoryRegion x_region;
  const uint32_t x_epoch = util::process_epoch();
};

}  // namespace

// --- at the owner -------------------------------------------------------------------------------

// Not where a fork would take the pages away.
bool VerbsLink::opens_memory() const noexcept {
  return x_core.device().fork_safe();
}

std::unique_ptr<OpenMemory> VerbsLink::open(const iovec& memory, bool for_reads,
                                            bool for_writes) noexcept {
  const Device& device = x_core.device();
  if (!opens_memory() || memory.iov_len > device.limits().max_region) return nullptr;
  const int access = (for_reads ? IBV_ACCESS_REMOTE_READ : 0) |
                     (for_writes ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0);
  const bool permitted = may_open(memory.iov_len);
  errno = ENOMEM;
  MemoryRegion region(permitted ? ibv_reg_mr(device.pd(), memory.iov_base, memory.iov_len, access)
                                : nullptr);
  if (!region) {
    ERDMA_INFO(MR,
               "%s: peers access a region of %zu bytes by messages: it can't be registered: %s; "
               "RLIMIT_MEMLOCK may be too small (regions get a quarter of it)\n",
               device.name().c_str(), memory.iov_len, util::ErrorText(errno).c_str());
    return nullptr;
  }
  return std::unique_ptr<OpenMemory>(new (std::nothrow) VerbsMemory(std::move(region)));
}

// --- at the initiator ---------------------------------------------------------------------------

int VerbsLink::direct(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                      bool is_read, bool until_placed) noexcept {
  RemoteMemory named;
  if (!decode(remote.memory, named) || named.staged || named.count != 1 || remote.length == 0 ||
      remote.offset > named.length || remote.length > named.length - remote.offset ||
      count > kMaxIov || hmem::total_length(local, count) < remote.length)
    return -FI_EINVAL;
  if (!x_sender) return not_ready();
  Transfer* begun = x_core.transfers().acquire();
  if (!begun) return -FI_EAGAIN;
  begun->token = token;
  begun->is_read = is_read;
  begun->flush_due = until_placed && !is_read;
  begun->length = begun->remote.length = remote.length;
  begun->remote.count = 1;
  begun->remote.pieces[0] = {named.pieces[0].address + remote.offset, remote.length,
                             named.pieces[0].rkey};
  x_sender->used = x_core.polls();
  if (remote.length > std::min(kShortBytes, x_core.packet_blocks().block_bytes()) ||
      (is_read && !x_sender->may_read_short())) {
    prepare(*begun, local, count);
    x_sender->begin(*begun);
    return 0;
  }
  begun->count = hmem::slice(local, count, 0, remote.length, begun->local);
  begun->bounces = true;
  const int rc = x_sender->post_direct(*begun);
  if (rc) x_core.transfers().release(*begun);
  return rc;
}

int Connection::post_direct(Transfer& transfer) noexcept {
  const bool flushes = transfer.flush_due;
  const bool reads = transfer.is_read || flushes;
  if (x_due || x_send.room() <= kReservedPlaces + (flushes ? 1 : 0) ||
      (reads && x_reads >= x_core.reads_in_flight()))
    return -FI_EAGAIN;
  flush_chain();
  if (const int rc = post_short(transfer)) return rc;
  transfer.owner = this;
  transfer.posted = transfer.length;
  x_waiting.push_back(transfer);
  // There is no way back: what the device did not take ends with the connection.
  if (flushes && post_flush(transfer)) broken(-FI_EIO, "a READ was refused by the device");
  return 0;
}

bool Connection::may_read_short() noexcept {
  return x_sinks.has_long(x_core.device());
}

/// A place for a transfer that is not inline: of a READ, one of its own connection's.
bool Connection::acquire_short(const Transfer& transfer, BlockPool::Block& block) noexcept {
  if (!transfer.is_read) return x_core.packet_blocks().acquire(block);
  const uint32_t slot = x_sinks.acquire_long(x_core.device());
  if (slot == ReadSinks::kNone) return false;
  block = {x_sinks.bytes(slot), x_sinks.lkey(slot), slot};
  return true;
}

void Connection::release_short(const Transfer& transfer, const BlockPool::Block& block) noexcept {
  if (transfer.is_read)
    x_sinks.release(block.slab);
  else
    x_core.packet_blocks().release(block);
}

/// -FI_EAGAIN: nothing happened.
int Connection::post_short(Transfer& transfer) noexcept {
  alignas(8) std::byte bytes[Chain::kMaxInline];
  std::byte* here = bytes;
  uint32_t lkey = 0;
  ibv_send_wr request{};
  Work work{};
  const bool fits = !transfer.is_read && transfer.length <= x_inline;
  if (fits) {
    request.send_flags = IBV_SEND_INLINE;
  } else {
    if (!acquire_short(transfer, work.block)) return no_block(x_core.packet_blocks());
    here = work.block.bytes;
    lkey = work.block.lkey;
  }
  if (!transfer.is_read) hmem::gather(here, transfer.local, transfer.count, 0, transfer.length);
  ibv_sge local{uint64_t(here), uint32_t(transfer.length), lkey};
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = transfer.is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = transfer.remote.pieces[0].address;
  request.wr.rdma.rkey = transfer.remote.pieces[0].rkey;
  // A WRITE that a READ follows is nothing but what it holds.
  work.type = !transfer.flush_due ? Work::Type::direct
              : fits              ? Work::Type::packet
                                  : Work::Type::block;
  work.transfer = &transfer;
  x_send.stage(request, !transfer.flush_due) = work;
  if (const int rc = x_send.post(request)) {
    x_send.unstage();
    if (!fits) release_short(transfer, work.block);
    return refused(rc);
  }
  if (transfer.is_read) ++x_reads;
  // Only the READ behind it will say that it is done.
  if (transfer.flush_due) x_core.counters().write_bytes += transfer.length;
  return 0;
}

/// A READ behind the WRITEs of a transfer: its answer proves that they are placed, as RC keeps
/// their order. -FI_EAGAIN: nothing happened.
int Connection::post_flush(Transfer& transfer) noexcept {
  if (x_send.room() == 0 || x_reads >= x_core.reads_in_flight()) return -FI_EAGAIN;
  flush_chain();
  const Core::HeartbeatMemory& mine = x_core.heartbeat();
  ibv_sge local{mine.sink_address, sizeof(uint64_t), mine.sink_lkey};
  ibv_send_wr request{};
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.wr.rdma.remote_addr = x_heartbeat_address;
  request.wr.rdma.rkey = x_heartbeat_rkey;
  Work work{};
  work.type = Work::Type::flush;
  work.transfer = &transfer;
  x_send.stage(request, true) = work;
  if (const int rc = x_send.post(request)) {
    x_send.unstage();
    return refused(rc);
  }
  transfer.flush_due = false;
  ++transfer.in_flight;
  ++x_reads;
  return 0;
}

void Connection::on_direct(const Work& work, bool success, Sink& sink) noexcept {
  Transfer& transfer = *work.transfer;
  if (transfer.is_read) --x_reads;
  if (success && transfer.is_read)
    hmem::scatter(transfer.local, transfer.count, 0, work.block.bytes, transfer.length);
  if (work.block.bytes) release_short(transfer, work.block);
  if (!success) return;  // ends with its connection
  Counters& counters = x_core.counters();
  (transfer.is_read ? counters.read_bytes : counters.write_bytes) += transfer.length;
  end_transfer(transfer, 0, sink);
}

void Connection::on_flush(const Work& work, bool success, Sink& sink) noexcept {
  Transfer& transfer = *work.transfer;
  --x_reads;
  --transfer.in_flight;
  if (!success) {
    transfer.status = -FI_EIO;
  } else if (transfer.all_posted() && transfer.in_flight == 0 && !transfer.status) {
    end_transfer(transfer, 0, sink);
  }
}

}  // namespace erdma::transport::verbs
