#include "transport/verbs/open_region.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>

#include "transport/verbs/registration.h"
#include "transport/verbs/shared_memory.h"
#include "util/error_text.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {
namespace {

/// Bytes of all open regions of this process.
std::atomic<size_t> g_open_bytes{0};

/// A quarter of what may be locked: without connections of its own the transport has no use for it.
bool may_open(size_t bytes) noexcept {
  static const size_t limit = lockable_bytes();
  if (limit == SIZE_MAX) return true;
  const size_t open = g_open_bytes.load(std::memory_order_relaxed);
  return bytes <= limit / 4 && open <= limit / 4 - bytes;
}

/// A region of the application's, with its rights and no more.
class VerbsMemory final : public RegisteredRegion {
 public:
  explicit VerbsMemory(MemoryRegion region) noexcept : x_region(std::move(region)) {
    g_open_bytes.fetch_add(x_region->length, std::memory_order_relaxed);
  }
  ~VerbsMemory() override {
    g_open_bytes.fetch_sub(x_region->length, std::memory_order_relaxed);
    if (x_epoch != util::process_epoch()) (void)x_region.release();  // the parent's
  }
  void describe(RemoteKey& remote_key) const noexcept override {
    RemoteMemory named;
    named.count = 1;
    named.length = x_region->length;
    named.pieces[0] = {uint64_t(x_region->addr), x_region->length, x_region->rkey};
    encode(named, remote_key);
  }

 private:
  MemoryRegion x_region;
  const uint32_t x_epoch = util::process_epoch();
};

}  // namespace

std::unique_ptr<RegisteredRegion> open_region(const Device& device, const iovec& memory,
                                              bool for_reads, bool for_writes) noexcept {
  if (!device.fork_safe() || memory.iov_len > device.limits().max_region) return nullptr;
  const bool permitted = may_open(memory.iov_len);
  errno = ENOMEM;
  MemoryRegion region(permitted ? ibv_reg_mr(device.pd(), memory.iov_base, memory.iov_len,
                                             peer_rights(for_reads, for_writes))
                                : nullptr);
  if (!region) {
    ERDMA_INFO(MR,
               "%s: peers access a region of %zu bytes by messages: it can't be registered: %s; "
               "RLIMIT_MEMLOCK may be too small (regions get a quarter of it)\n",
               device.name().c_str(), memory.iov_len, util::ErrorText(errno).c_str());
    return nullptr;
  }
  return std::unique_ptr<RegisteredRegion>(new (std::nothrow) VerbsMemory(std::move(region)));
}

}  // namespace erdma::transport::verbs
