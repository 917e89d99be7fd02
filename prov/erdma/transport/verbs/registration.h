#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/verbs/device.h"
#include "util/result.h"

namespace erdma::transport::verbs {

/// What this process may register in all: RLIMIT_MEMLOCK; SIZE_MAX without a limit.
size_t lockable_bytes() noexcept;

/// Of the application, so that a fork does no harm. Null with errno.
ibv_mr* register_host_memory(const Device& device, void* address, size_t length,
                             int rights) noexcept;

/// A use of registered memory: while held, the memory region is not deregistered.
/// lkey == rkey on eRDMA, but not everywhere.
struct Registration {
  uint32_t lkey = 0;
  uint32_t rkey = 0;
  void* entry = nullptr;  ///< the cache's
};

/// Registration::entry of a cache that stands before another one: tells its own from the other's.
template <typename Entry>
void* mark_entry(Entry& entry) noexcept {
  static_assert(alignof(Entry) > 1);
  return reinterpret_cast<std::byte*>(&entry) + 1;
}
/// Null: of the other cache.
template <typename Entry>
Entry* marked_entry(const Registration& registration) noexcept {
  if (!(reinterpret_cast<uintptr_t>(registration.entry) & 1)) return nullptr;
  return reinterpret_cast<Entry*>(static_cast<std::byte*>(registration.entry) - 1);
}

/// Registrations of the application's memory, kept for the next time as long as a monitor sees to
/// it that a mapping that changes is forgotten before anyone can use the new one. One per Device.
/// Thread-safe (endpoints of one domain with FI_THREAD_SAFE, and the monitor's own thread).
class RegistrationCache {
 public:
  struct Config {
    bool enabled = true;   ///< false: acquire() refuses always (everything bounces)
    size_t max_bytes = 0;  ///< 0 = half of RLIMIT_MEMLOCK, or no limit
    size_t max_regions = 1024;
  };
  /// Without a monitor memory is registered for one use at a time.
  static util::Result<std::unique_ptr<RegistrationCache>> create(const Device& device,
                                                                 const Config& config);
  virtual ~RegistrationCache() = default;

  /// Registered with exactly these rights (IBV_ACCESS_*), or found registered so: a key that a peer
  /// was told for one use opens the memory for no other. -FI_EOPNOTSUPP: this memory can't be
  /// registered safely (file mapping, fork-unsafe kernel, too big), or is not worth it: move its
  /// bytes through memory of the transport's own. -FI_ENOMEM likewise, but may pass.
  [[nodiscard]] virtual int acquire(const void* address, size_t length, int rights,
                                    Registration& registration) noexcept = 0;
  virtual void release(const Registration& registration) noexcept = 0;
  /// Whether as many bytes as these pieces have in all are worth a registration of each; asked
  /// before the first acquire().
  virtual bool worth(const iovec*, size_t /*count*/) noexcept { return true; }
  /// Memory of the application is about to be copied for want of what the whole run lacks: says so
  /// once, unless somebody asked for copies.
  virtual void warn_of_copy() noexcept {}
  /// Why acquire() refuses always; null: it does not. Static text.
  virtual const char* refuses_always() const noexcept { return nullptr; }
  /// Why nothing stays registered after its use, and short memory is refused; null: it is not so.
  virtual const char* registers_each_time() const noexcept { return nullptr; }
};

}  // namespace erdma::transport::verbs
