#pragma once

#include <cstdio>

#include "transport/verbs/memory_monitor.h"
#include "util/event_fd.h"

namespace erdma::test {

/// Returns true if a process may watch its own mappings here (userfaultfd), which registrations
/// need to be kept. The usual seccomp profile of containers refuses it. Tests that need it are then
/// left out, and the output says so. All hosts test the provider without it.
inline bool can_watch_memory() {
  const util::EventFd wake;
  const char* why = nullptr;
  const bool can = bool(transport::verbs::MemoryMonitor::create(wake, why));
  if (!can) std::printf("userfaultfd is refused here: what needs it is left out\n");
  return can;
}

/// Whether the kernel counts changes in progress; if not, any change counts as one of all memory.
inline bool counts_changes() {
  const util::EventFd wake;
  const char* why = nullptr;
  auto monitor = transport::verbs::MemoryMonitor::create(wake, why);
  return monitor && (*monitor)->counts_changes();
}

}  // namespace erdma::test
