#pragma once

#include <cstdint>

namespace erdma::util {

/// FI_ERDMA_LOG: which lines the provider writes to standard error if libfabric's log does not show
/// them.
enum class NoticeLevel : uint8_t { off, warn, info };

/// Reasons why a run is slow or fails that a user must see. Each cause gets a few lines per
/// process, however often it occurs and however many peers it affects.
enum class Cause : uint8_t {
  variable,       ///< an FI_ERDMA_* variable is unknown, or its value is not allowed
  no_data,        ///< fi_getinfo offers nothing
  device,         ///< a device that FI_ERDMA_DEVICE names is absent or down, or can't be used
  no_device,      ///< there is no device, and single-host operation was not asked for
  port,           ///< a port or a device failed during the run
  cma,            ///< the kernel refuses CMA
  local_path,     ///< a local peer is not reached through shared memory
  zero_copy,      ///< memory of the application is copied, not registered
  locked_memory,  ///< RLIMIT_MEMLOCK is too low for the provider's own memory
  descriptors,    ///< RLIMIT_NOFILE is too low
  queue_pairs,    ///< the NIC has no queue pair left
  gpu_staged,     ///< GPU memory is copied through host memory
  gpu_refused,    ///< GPU memory can't be used
  peer_lost,      ///< operations end in errors because the peer is gone or refuses
  lost_messages,  ///< messages are lost, and no completion reports it
  regions,        ///< the NIC has no memory region left
  host_mismatch,  ///< no peer is reached because settings that must be equal differ between hosts
  count
};

/// The code of a cause, such as "E105": a heading of docs/troubleshooting.md, and the name that
/// fi_erdma doctor gives the problem. Each line of ERDMA_NOTICE ends with it.
const char* code_of(Cause cause) noexcept;

/// Must be called when the process loads the provider. If standard error is closed at that time,
/// its number will belong to a file of the application, and gets no lines.
void look_at_standard_error() noexcept;

void set_notice_level(NoticeLevel level) noexcept;
NoticeLevel notice_level() noexcept;

/// False: tell() would write nothing, so the caller need not compute its arguments.
bool may_tell(Cause cause) noexcept;
/// Writes "erdma: HOST[PID]: text [CODE]" to standard error: one line, by one write(2). It never
/// waits: if standard error cannot take the line at once, the line is lost. The same text is
/// written once per process. tell() does not allocate and keeps errno.
void tell(Cause cause, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

/// Writes the same kind of line without a code, at NoticeLevel::info only. A text may be written
/// repeatedly.
void announce(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));

}  // namespace erdma::util
