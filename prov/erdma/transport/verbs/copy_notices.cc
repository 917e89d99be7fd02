#include "transport/verbs/copy_notices.h"

#include <sys/resource.h>

#include <atomic>
#include <cerrno>

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// One line is enough, whichever cause comes first.
std::atomic<bool> g_warned{false};

}  // namespace

void warn_of_copies(const char* why) noexcept {
  if (g_warned.load(std::memory_order_relaxed) || g_warned.exchange(true)) return;
  ERDMA_NOTICE(zero_copy, MR,
               "zero copy is off, long messages through the NIC are copied, which takes processor "
               "time and bandwidth: %s. FI_ERDMA_MR_CACHE=off asks for copies and silences this "
               "line",
               why);
}

void CopyNotices::once(What what, const char* why, size_t bytes) noexcept {
  if (x_said & what) return;
  x_said |= what;
  rlimit limit{};
  switch (what) {
    case locked:
      (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
      ERDMA_NOTICE(
          zero_copy, MR,
          "memory of the application (%zu bytes) could not be registered: %s; it is copied "
          "instead. Raise the limit of locked memory (ulimit -l, now %zu KiB)",
          bytes, why, size_t(limit.rlim_cur >> 10));
      break;
    case regions:
      ERDMA_NOTICE(regions, MR,
                   "memory of the application (%zu bytes) could not be registered: %s; it is "
                   "copied instead. End processes that are not needed (rdma resource show mr)",
                   bytes, why);
      break;
    case size:
      ERDMA_NOTICE(zero_copy, MR, "memory of the application (%zu bytes) %s: it is copied instead",
                   bytes, why);
      break;
    case shared:  // applications may do this on purpose
      ERDMA_ANNOUNCE(MR, "memory of the application %s: it is copied instead\n", why);
      break;
    default:
      ERDMA_NOTICE(zero_copy, MR, "memory of the application %s: it is copied instead", why);
  }
}

void CopyNotices::no_room(int error, size_t bytes) noexcept {
  if (error == ENOSPC)
    once(regions, "the NIC has no region left for any process of this host", bytes);
  else
    once(locked, util::ErrorText(error).c_str(), bytes);
}

void CopyNotices::mended(size_t bytes) noexcept {
  if (!(x_said & (locked | regions))) return;
  x_said &= ~unsigned(locked | regions);
  ERDMA_NOTICE(zero_copy, MR,
               "memory of the application (%zu bytes) can be registered again: it is no longer "
               "copied",
               bytes);
}

}  // namespace erdma::transport::verbs
