#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "fi_erdma/snapshot.h"

namespace fi_erdma {

/// A process that has a statistics page, with the present contents of the page. Reading needs no
/// help from the process, which may be stopped or hang.
struct Process {
  pid_t pid = 0;   ///< as in /proc here; the page of a process in a container has another PID
  char state = 0;  ///< state of its main thread as in ps: R, S, D, T, Z, ...; 0 = unknown
  ReadResult page;
  double processor_seconds = 0;  ///< processor time of all its threads so far
  unsigned more_pages = 0;       ///< further pages, of other copies of the provider in the process

  /// The blocks of a kind in its page; none without a page.
  std::span<const Block> blocks(std::string_view kind) const;
  /// The block of the process itself; null if it shows none.
  const Block* shown() const;
};

/// Roughly the bytes that all pages of one look may cost. Further pages get a fault instead.
inline constexpr size_t kMostCostOfAll = size_t(256) << 20;

/// All processes that this user may read, in the order of their PIDs, or the given ones in the
/// given order. A process that ends meanwhile is left out. A given process without a page has a
/// fault. `refused`: grows by the number of programs that the kernel does not let this user look
/// into.
std::vector<Process> processes(unsigned* refused = nullptr);
std::vector<Process> processes(std::span<const pid_t> pids, size_t most_cost = kMostCostOfAll);
/// The calling process, also if /proc belongs to another PID namespace. It has a fault if it is not
/// in /proc.
Process this_process();

/// The counters of a process with all its endpoints, by name. Empty if it has no page.
std::map<std::string, uint64_t> counters_of(const Process& process);

}  // namespace fi_erdma
