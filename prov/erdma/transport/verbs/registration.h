#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/verbs/device.h"
#include "util/result.h"

namespace erdma::transport::verbs {

/// The bytes that this process may register in all: RLIMIT_MEMLOCK; SIZE_MAX without a limit.
size_t lockable_bytes() noexcept;

/// Registers memory of the application such that a fork does no harm. Null with errno.
ibv_mr* register_host_memory(const Device& device, void* address, size_t length,
                             int rights) noexcept;
/// To be called after what that registered was deregistered.
void deregistered_host_memory(const Device& device, const iovec& memory) noexcept;

/// One use of registered memory: the memory region is not deregistered while it is held. lkey ==
/// rkey on eRDMA, but not on all devices.
struct Registration {
  uint32_t lkey = 0;
  uint32_t rkey = 0;
  void* entry = nullptr;  ///< belongs to the cache
};

/// Registration::entry of a cache in front of another one: marks its own entries.
template <typename Entry>
void* mark_entry(Entry& entry) noexcept {
  static_assert(alignof(Entry) > 1);
  return reinterpret_cast<std::byte*>(&entry) + 1;
}
/// Null: the entry belongs to the other cache.
template <typename Entry>
Entry* marked_entry(const Registration& registration) noexcept {
  if (!(reinterpret_cast<uintptr_t>(registration.entry) & 1)) return nullptr;
  return reinterpret_cast<Entry*>(static_cast<std::byte*>(registration.entry) - 1);
}

/// Registrations of the application's memory. They are kept for later uses as long as a monitor
/// makes sure that a changed mapping is forgotten before its new content can be used. One per
/// Device. Thread-safe (endpoints of one domain with FI_THREAD_SAFE, and the monitor's thread).
class RegistrationCache {
 public:
  struct Config {
    bool enabled = true;   ///< false: acquire() always refuses (everything bounces)
    size_t max_bytes = 0;  ///< 0 = half of RLIMIT_MEMLOCK, or no limit
    size_t max_regions = 1024;
  };
  /// Without a monitor, memory is registered for one use at a time.
  static util::Result<std::unique_ptr<RegistrationCache>> create(const Device& device,
                                                                 const Config& config);
  virtual ~RegistrationCache() = default;

  /// Registers memory with exactly these rights (IBV_ACCESS_*), or finds it so registered: a key
  /// that a peer was told for one use must not allow another. -FI_EOPNOTSUPP: this memory cannot be
  /// registered safely (file mapping, fork-unsafe kernel, too large), or is not worth it: move its
  /// bytes through memory of the transport. -FI_ENOMEM: likewise, but the cause may pass.
  [[nodiscard]] virtual int acquire(const void* address, size_t length, int rights,
                                    Registration& registration) noexcept = 0;
  virtual void release(const Registration& registration) noexcept = 0;
  /// True if the total length of these pieces is worth registering each of them. Call before the
  /// first acquire().
  virtual bool should_register(const iovec*, size_t /*count*/) noexcept { return true; }
  /// Whether a processor can copy this memory, which is not so of memory of a GPU.
  virtual bool copies(const iovec*, size_t /*count*/) noexcept { return true; }
  /// Memory of the application is about to be copied because registration is impossible for the
  /// whole run: warns once, unless the user asked for copies.
  virtual void warn_of_copy() noexcept {}
  /// Why acquire() always refuses; null: it does not. Static text.
  virtual const char* refuses_always() const noexcept { return nullptr; }
  /// Why no registration is kept after its use, and short memory is refused; null: neither is so.
  virtual const char* registers_each_time() const noexcept { return nullptr; }
};

}  // namespace erdma::transport::verbs
