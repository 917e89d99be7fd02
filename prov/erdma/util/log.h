#pragma once

#include <mutex>

#include <rdma/providers/fi_log.h>

#include "util/clock.h"
#include "util/notice.h"
#include "util/rate_limit.h"

struct fi_provider;

namespace erdma::util {

/// The provider that log lines are attributed to. fi_prov_ini sets it once. It is never null:
/// before that, and in unit tests, it is a nameless stand-in.
const fi_provider* log_provider() noexcept;
void set_log_provider(const fi_provider* provider) noexcept;

/// Does libfabric's log, or what an application put in its place, take such a line?
inline bool log_takes(fi_log_level level, fi_log_subsys subsystem) noexcept {
  return fi_log_enabled(log_provider(), level, subsystem) != 0;
}

/// Of the warnings that one place in the code writes: no peer can fill the log. Thread-safe.
class LineLimit {
 public:
  /// True: `left_out` lines were not written since the last one.
  bool allow(uint64_t now, unsigned& left_out) noexcept;

 private:
  std::mutex x_mutex;
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
/// and otherwise to standard error, within the limits of tell().
#define ERDMA_NOTICE(cause, subsystem, ...)                          \
  do {                                                               \
    if (::erdma::util::log_takes(FI_LOG_WARN, FI_LOG_##subsystem))   \
      ERDMA_WARN(subsystem, __VA_ARGS__);                            \
    else if (::erdma::util::may_tell(::erdma::util::Cause::cause))   \
      ::erdma::util::tell(::erdma::util::Cause::cause, __VA_ARGS__); \
  } while (0)
/// A line for users who ask what is used. It goes to libfabric's log if that takes information, and
/// otherwise to standard error with FI_ERDMA_LOG=info.
#define ERDMA_ANNOUNCE(subsystem, ...)                                          \
  do {                                                                          \
    if (::erdma::util::log_takes(FI_LOG_INFO, FI_LOG_##subsystem))              \
      ERDMA_INFO(subsystem, __VA_ARGS__);                                       \
    else if (::erdma::util::notice_level() == ::erdma::util::NoticeLevel::info) \
      ::erdma::util::announce(__VA_ARGS__);                                     \
  } while (0)
