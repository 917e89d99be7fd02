#pragma once

#include <rdma/providers/fi_log.h>

#include "util/clock.h"
#include "util/lock.h"
#include "util/notice.h"
#include "util/rate_limit.h"

struct fi_provider;

namespace erdma::util {

/// The provider that log lines are attributed to. fi_prov_ini sets it once. It is never null:
/// before that, and in unit tests, it is a placeholder that has only a name.
const fi_provider* log_provider() noexcept;
void set_log_provider(const fi_provider* provider) noexcept;

/// True if libfabric's log, or a log that the application installed in its place, takes lines of
/// this level and subsystem.
inline bool log_takes(fi_log_level level, fi_log_subsys subsystem) noexcept {
  return fi_log_enabled(log_provider(), level, subsystem) != 0;
}

/// Limits the warnings that one place in the code writes, so that no peer can fill the log.
/// Thread-safe.
class LineLimit {
 public:
  /// True: write the line; `left_out` lines were suppressed since the last one that was written.
  bool allow(uint64_t now, unsigned& left_out) noexcept;

 private:
  EpochLock x_lock;  ///< of x_limit, which may be in the middle of a change in a forked child
  RateLimit x_limit;
};

}  // namespace erdma::util

// Each of these macros evaluates its arguments only if the line is written. The arguments must not
// allocate in a noexcept function; SocketAddress::to_string() does not allocate.
//
// Subsystem: CORE, FABRIC, DOMAIN, EP_CTRL, EP_DATA, AV, CQ, EQ, MR, CNTR.
#define ERDMA_WARN(subsystem, ...)                                              \
  do {                                                                          \
    static ::erdma::util::LineLimit line_limit;                                 \
    unsigned left_out = 0;                                                      \
    if (!::erdma::util::log_takes(FI_LOG_WARN, FI_LOG_##subsystem)) break;      \
    if (!line_limit.allow(::erdma::util::SystemClock().now(), left_out)) break; \
    if (left_out > 0)                                                           \
      FI_WARN(::erdma::util::log_provider(), FI_LOG_##subsystem,                \
              "%u warnings like the next one were left out\n", left_out);       \
    FI_WARN(::erdma::util::log_provider(), FI_LOG_##subsystem, __VA_ARGS__);    \
  } while (0)
#define ERDMA_INFO(subsystem, ...) \
  FI_INFO(::erdma::util::log_provider(), FI_LOG_##subsystem, __VA_ARGS__)
#define ERDMA_DEBUG(subsystem, ...) \
  FI_LOG(::erdma::util::log_provider(), FI_LOG_DEBUG, FI_LOG_##subsystem, __VA_ARGS__)

/// A warning that a user must see (util::Cause). It goes to libfabric's log if that takes warnings,
/// and otherwise to standard error, within the limits of tell(). `format` is a literal without a
/// newline; either line ends with the code of the cause.
#define ERDMA_NOTICE(cause, subsystem, format, ...)                                        \
  do {                                                                                     \
    if (::erdma::util::log_takes(FI_LOG_WARN, FI_LOG_##subsystem))                         \
      ERDMA_WARN(subsystem, format " [%s]\n" __VA_OPT__(, ) __VA_ARGS__,                   \
                 ::erdma::util::code_of(::erdma::util::Cause::cause));                     \
    else if (::erdma::util::may_tell(::erdma::util::Cause::cause))                         \
      ::erdma::util::tell(::erdma::util::Cause::cause, format __VA_OPT__(, ) __VA_ARGS__); \
  } while (0)
/// A line that tells users which transports and devices are in use. It goes to libfabric's log if
/// that takes lines of level info, and otherwise to standard error with FI_ERDMA_LOG=info.
#define ERDMA_ANNOUNCE(subsystem, ...)                                          \
  do {                                                                          \
    if (::erdma::util::log_takes(FI_LOG_INFO, FI_LOG_##subsystem))              \
      ERDMA_INFO(subsystem, __VA_ARGS__);                                       \
    else if (::erdma::util::notice_level() == ::erdma::util::NoticeLevel::info) \
      ::erdma::util::announce(__VA_ARGS__);                                     \
  } while (0)
