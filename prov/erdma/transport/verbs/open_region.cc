#include "transport/verbs/open_region.h"

#include <atomic>
#include <cerrno>
#include <cstdint>

#include <rdma/fi_errno.h>

#include "transport/verbs/registration.h"
#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// Bytes of all open regions of this process.
std::atomic<size_t> g_open_bytes{0};

/// Regions may take a quarter of what may be locked; the rest is left for connections.
bool may_open(size_t bytes) noexcept {
  static const size_t limit = lockable_bytes();
  if (limit == SIZE_MAX) return true;
  const size_t open = g_open_bytes.load(std::memory_order_relaxed);
  return bytes <= limit / 4 && open <= limit / 4 - bytes;
}

/// A region that is counted while it exists.
class HostRegion final : public VerbsRegion {
 public:
  /// `device` must outlive the region.
  HostRegion(const Device& device, const iovec& memory) noexcept
      : VerbsRegion(memory), x_device(device) {
    g_open_bytes.fetch_add(memory.iov_len, std::memory_order_relaxed);
  }
  ~HostRegion() override {
    g_open_bytes.fetch_sub(memory().iov_len, std::memory_order_relaxed);
    if (deregister()) deregistered_host_memory(x_device, memory());
  }

 private:
  const Device& x_device;
};

}  // namespace

/// Registrations that nobody uses make room. Where even all of them were too few, as the driver may
/// need contiguous memory for a table, the next regions of this length leave them alone. 0 or an
/// errno.
int HostRegistrar::make(const iovec& memory, int rights, MemoryRegion& region) noexcept {
  bool asks = true, asked = false;
  {
    const std::lock_guard guard(x_mutex);
    asks = !x_fruitless.refuses(memory.iov_len);
  }
  int error = 0;
  for (;; asked = true) {
    region.reset(register_host_memory(x_device, memory.iov_base, memory.iov_len, rights));
    error = region ? 0 : errno;
    if (!error || !asks || !x_device.ask_for_room(error)) break;
  }
  const std::lock_guard guard(x_mutex);
  if (!error)
    (void)x_fruitless.made(memory.iov_len);
  else if (asked && error == ENOMEM)
    x_fruitless.failed(memory.iov_len, true);
  return error;
}

util::Result<std::unique_ptr<RegisteredRegion>> HostRegistrar::open(const iovec& memory,
                                                                    const Dmabuf*, bool for_reads,
                                                                    bool for_writes) {
  if (!x_device.fork_safe()) {
    x_cache.warn_of_copy();
    return -FI_EOPNOTSUPP;
  }
  const size_t most = x_device.limits().max_region;
  if (memory.iov_len > most) {
    ERDMA_NOTICE(
        zero_copy, MR,
        "a region of %zu bytes is more than %s registers at once (%zu), so peers access it "
        "by messages. Register several shorter regions",
        memory.iov_len, x_device.name().c_str(), most);
    return -FI_EOPNOTSUPP;
  }
  int error = ENOMEM;
  if (may_open(memory.iov_len)) {
    // Before the registration: only this object gives the memory back to children.
    auto opened = std::make_unique<HostRegion>(x_device, memory);
    MemoryRegion region;
    error = make(memory, peer_rights(for_reads, for_writes), region);
    opened->hold(std::move(region));
    if (!error) return std::unique_ptr<RegisteredRegion>(std::move(opened));
  }
  ERDMA_INFO(MR,
             "%s: peers access a region of %zu bytes by messages: it can't be registered: %s; "
             "RLIMIT_MEMLOCK may be too small (regions get a quarter of it)\n",
             x_device.name().c_str(), memory.iov_len, util::ErrorText(error).c_str());
  return -FI_ENOMEM;
}

}  // namespace erdma::transport::verbs
