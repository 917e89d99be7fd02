#pragma once

#include <cstdio>

#include "transport/verbs/memory_monitor.h"
#include "util/event_fd.h"

namespace erdma::test {

/// Whether a process may watch its own mappings here (userfaultfd), as registrations that are kept
/// need. The usual seccomp profile of containers refuses it; what needs it is left out then, and
/// the output says so. What the provider does without it is tested everywhere.
inline bool can_watch_memory() {
  const util::EventFd wake;
  const char* why = nullptr;
  const bool can = bool(transport::verbs::MemoryMonitor::create(wake, why));
  if (!can) std::printf("userfaultfd is refused here: what needs it is left out\n");
  return can;
}

}  // namespace erdma::test
