#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "fi_erdma/snapshot.h"

namespace fi_erdma {

/// A process that shows a page, and what the page says now. The process does nothing for that: it
/// may be stopped, or hang.
struct Process {
  pid_t pid = 0;   ///< as /proc names it here; in a container, the page has another one
  char state = 0;  ///< of its main thread, as ps shows it: R, S, D, T, Z, ...; 0 = unknown
  ReadResult page;
  double processor_seconds = 0;  ///< that all its threads used so far
};

/// Bytes that all snapshots of one look may keep, roughly. Pages beyond have a fault.
inline constexpr size_t kMostCostOfAll = size_t(256) << 20;

/// All that this user may look at, or those named. What they are is in the order of their PIDs. A
/// process that ends meanwhile is left out; one that was named, and shows no page, has a fault.
std::vector<Process> processes();
std::vector<Process> processes(std::span<const pid_t> pids, size_t most_cost = kMostCostOfAll);
/// The caller itself, also where /proc counts PIDs in another way; a fault where /proc lacks it.
Process this_process();

}  // namespace fi_erdma
