#pragma once

#include <chrono>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fi_erdma/processes.h"
#include "fi_erdma/traffic.h"

namespace fi_erdma {

/// All pages at one point in time.
struct Look {
  std::chrono::steady_clock::time_point at;
  std::vector<Process> processes;
  unsigned refused = 0;  ///< further programs that this user may not look into
  size_t memory = 0;     ///< bytes that this look allocated in pages, and that they keep
};
/// Looks at these processes; without PIDs at all that this user may read.
Look look(const std::vector<pid_t>& pids);

/// The growth of counters between two looks. A block that was missing in the first look has no
/// rate, nor has an endpoint or a process of which a look lacks a block: its bytes would seem to
/// move once the block is there again.
class Rates {
 public:
  /// Without `before` there are no rates. Both looks must outlive this object.
  Rates(const Look* before, const Look& now);

  double seconds() const { return x_seconds; }
  /// Whether the first look lacks the process, or has another page of its PID.
  bool is_new(const Process& process) const { return !before(process); }
  /// The same block in the first look; null if it was missing or had another owner.
  const Block* before(const Process& process, std::string_view kind, const Block& block) const;
  /// Bytes per second of an endpoint by one path, and of a process by all paths.
  struct Pair {
    std::optional<double> sent, received;
  };
  Pair of(const Process& process, const Block& endpoint, const Path& path) const;
  /// Without the bytes of closed endpoints if the block of the process does not have them.
  Pair of(const Process& process) const;
  /// The same for a peer of a process.
  Pair of_peer(const Process& process, const Block& peer) const;
  /// The share of one processor that the process used meanwhile.
  double load(const Process& process) const;
  /// The rate of any counter.
  std::optional<double> of(const Process& process, const Block& endpoint,
                           std::string_view counter) const;

 private:
  Pair of_open(const Process& process) const;
  const Process* before(const Process& process) const;
  bool is_whole(const Process& process) const;
  std::optional<double> rate(std::optional<uint64_t> from, std::optional<uint64_t> to) const;

  std::unordered_map<pid_t, const Process*> x_by_pid;  ///< processes of the first look
  double x_seconds = 0;
};

}  // namespace fi_erdma
