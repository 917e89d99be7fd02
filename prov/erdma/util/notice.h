#pragma once

#include <cstdint>

namespace erdma::util {

/// FI_ERDMA_LOG: which lines the provider writes to standard error if libfabric's log does not show
/// them.
enum class NoticeLevel : uint8_t { off, warn, info };

/// Why a run is slow or fails: causes that a user must hear of. Each cause gets few lines per
/// process, however often it occurs and however many peers are concerned.
enum class Cause : uint8_t {
  variable,       ///< an FI_ERDMA_* variable is unknown, or its value is not allowed
  no_data,        ///< why fi_getinfo offers nothing
  device,         ///< a device that was named is absent or down, or can't be used
  no_device,      ///< no device at all, where single-host operation was not asked for
  port,           ///< a port or a device failed during the run
  cma,            ///< the kernel refuses CMA
  local_path,     ///< a local peer is not reached through shared memory
  zero_copy,      ///< memory of the application is copied, not registered
  locked_memory,  ///< RLIMIT_MEMLOCK is too low for the provider's own memory
  descriptors,    ///< RLIMIT_NOFILE is too low
  queue_pairs,    ///< the NIC has none left
  gpu_staged,     ///< GPU memory is copied through host memory
  gpu_refused,    ///< GPU memory can't be used
  peer_lost,      ///< operations end in errors, as the peer is gone or refuses
  lost_messages,  ///< messages are lost, and no completion reports it
  unlike_hosts,   ///< no peer is reached, as hosts differ in what they should have alike
  count
};

/// A heading of docs/troubleshooting.md, and what fi_erdma doctor calls this trouble. Each line of
/// the cause ends with it.
const char* code_of(Cause cause) noexcept;

void set_notice_level(NoticeLevel level) noexcept;
NoticeLevel notice_level() noexcept;

/// False: tell() would write nothing, so its arguments need not be computed.
bool may_tell(Cause cause) noexcept;
/// Writes "erdma: HOST[PID]: text [CODE]" to standard error: one line, by one write(2). It never
/// waits: if standard error cannot take the line at once, the line is lost. The same text is
/// written once per process. The call neither allocates nor changes errno.
void tell(Cause cause, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

/// Writes such a line at NoticeLevel::info, also if the text was written before.
void announce(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));

}  // namespace erdma::util
