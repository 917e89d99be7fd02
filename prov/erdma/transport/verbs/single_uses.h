#pragma once

#include <memory>
#include <mutex>

#include "transport/verbs/copy_notices.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/registration_cache.h"
#include "util/event_fd.h"
#include "util/intrusive_list.h"
#include "util/process_epoch.h"
#include "util/thread.h"

namespace erdma::transport::verbs {

/// Registers memory of the application for one use at a time, where changes of its mappings can't
/// be seen. Memory belongs to a transfer from acquire() to release(), and its owner leaves it alone
/// meanwhile: so a region that no other use ever finds can't be stale, whatever happens to the
/// addresses before and after, also while it waits to be deregistered. Uses do not share one
/// either, not even at the same time: of the pages that only the elder one holds nobody could tell
/// that they are still the same.
class SingleUses final : public RegistrationCache {
 public:
  /// A registration costs about as much as a copy of so many bytes: two commands of the device, and
  /// the kernel pins page by page.
  static constexpr size_t kLeastBytes = 256 * 1024;

  struct Limits {
    size_t max_bytes = SIZE_MAX;  ///< of all regions
    size_t max_regions = 1024;
    size_t max_region_bytes = SIZE_MAX;
    size_t least_bytes = kLeastBytes;  ///< of all pieces: shorter uses are not worth it
    /// A thread deregisters, some at a time, so that no transfer waits for it. Not where memory is
    /// kept from children as long as it is registered: it may be the application's to give them.
    bool later = false;
  };
  /// `why`: static text, of what is missing and of the remedy.
  SingleUses(std::unique_ptr<RegionMaker> maker, const Limits& limits, const char* why) noexcept;
  ~SingleUses() override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;
  bool worth(const iovec* memory, size_t count) noexcept override;
  const char* registers_each_time() const noexcept override { return x_why; }

 private:
  bool reserve(size_t bytes) noexcept;
  void give_back(size_t bytes) noexcept;
  int refuse(CopyNotices::What what, const char* why, size_t bytes) noexcept;
  int failed(int error, size_t bytes) noexcept;
  void warn() noexcept;
  void keep_house() noexcept;
  void destroy_retired() noexcept;

  const std::unique_ptr<RegionMaker> x_maker;
  const Limits x_limits;
  const char* const x_why;
  std::mutex x_mutex;  ///< of what follows; never held while the device or the kernel is asked
  CopyNotices x_notices;
  util::IntrusiveList<CachedRegion> x_retired;  ///< nobody uses them
  bool x_stop = false;
  size_t x_bytes = 0, x_regions = 0;
  size_t x_refused_bytes = SIZE_MAX;  ///< was refused although nothing else was registered
  const uint32_t x_epoch = util::process_epoch();
  std::mutex x_housekeeping;  ///< held while retired regions are destroyed; before x_mutex
  util::EventFd x_wake;       ///< rings when the first region retires
  util::Thread x_housekeeper;
};

}  // namespace erdma::transport::verbs
