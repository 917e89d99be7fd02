#pragma once

#include <memory>
#include <mutex>

#include "transport/verbs/copy_notices.h"
#include "transport/verbs/refused_size.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/registration_cache.h"
#include "util/before_fork.h"
#include "util/event_fd.h"
#include "util/intrusive_list.h"
#include "util/process_epoch.h"
#include "util/thread.h"

namespace erdma::transport::verbs {

/// Registers memory of the application for one use at a time, where changes of mappings cannot be
/// seen. Memory belongs to a transfer from acquire() to release(), and its owner does not touch it
/// meanwhile. So a region that no other use ever finds cannot be stale, whatever happens to the
/// addresses before and after, also while it waits to be deregistered. Even simultaneous uses do
/// not share a region: for the pages that only the older use holds, nothing shows that they are
/// still the same.
class SingleUses final : public RegistrationCache, private util::BeforeFork, private RegionEvictor {
 public:
  struct Limits {
    size_t max_bytes = SIZE_MAX;  ///< of all regions
    size_t max_regions = 1024;
    size_t max_region_bytes = SIZE_MAX;
    size_t least_bytes =
        kLeastSingleUse;  ///< of all pieces: shorter uses are not worth a registration
    /// A thread deregisters several regions at a time, so that no transfer waits for it.
    bool later = false;
    /// How long the thread lets regions retire. It often shares a core with the transfers, and each
    /// time that it runs costs them two switches between threads.
    int gather_ms = 10;
    /// children do not get memory that is registered when they begin
    bool kept_from_children = false;
    const Device* device = nullptr;  ///< retired regions make room for its other memory
  };
  /// `why`: static text about what is missing and the remedy.
  SingleUses(std::unique_ptr<RegionMaker> maker, const Limits& limits, const char* why) noexcept;
  ~SingleUses() override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;
  bool should_register(const iovec* memory, size_t count) noexcept override;
  const char* registers_each_time() const noexcept override { return x_why; }

 private:
  CachedRegion* make(const MemoryRange& range, int rights) noexcept;
  int reserve(size_t bytes) noexcept;
  void give_back(size_t bytes) noexcept;
  int refuse(CopyNotices::What what, const char* why, size_t bytes) noexcept;
  int failed(int error, size_t bytes) noexcept;
  void made(size_t bytes) noexcept;
  void warn() noexcept;
  void evict_loop() noexcept;
  void wait(int timeout_ms) noexcept;
  bool must_stop() noexcept;
  void retire(CachedRegion& entry) noexcept;
  bool destroy_retired() noexcept;
  bool evict_after(int error) noexcept override;
  void before_fork() noexcept override;

  const std::unique_ptr<RegionMaker> x_maker;
  const Limits x_limits;
  const char* const x_why;
  /// Guards what follows; never held during a call to the device or the kernel.
  std::mutex x_mutex;
  CopyNotices x_notices;
  util::IntrusiveList<CachedRegion> x_retired;  ///< without users
  size_t x_retired_bytes = 0, x_retired_regions = 0;
  bool x_hurry = false;  ///< too many are retired for the thread to wait for more
  bool x_stop = false;
  size_t x_bytes = 0, x_regions = 0;
  RefusedSize x_refused;
  const uint32_t x_epoch = util::process_epoch();
  std::mutex x_destroy_mutex;  ///< held while retired regions are destroyed; taken before x_mutex
  util::EventFd x_wake;        ///< rings when the first region retires, and at x_hurry
  util::Thread x_evict_thread;
};

}  // namespace erdma::transport::verbs
