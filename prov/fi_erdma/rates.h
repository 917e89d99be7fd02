#pragma once

#include <chrono>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fi_erdma/processes.h"
#include "fi_erdma/traffic.h"

namespace fi_erdma {

/// All pages at one moment.
struct Look {
  std::chrono::steady_clock::time_point at;
  std::vector<Process> processes;
};
Look look(const std::vector<pid_t>& pids);

/// How fast counters grow between two looks. What was not there at the first one has no rate.
class Rates {
 public:
  /// Without `before` there are no rates. Both must live as long.
  Rates(const Look* before, const Look& now);

  double seconds() const { return x_seconds; }
  /// The same block at the first look; null if it was not there, or was another's.
  const Block* before(const Process& process, std::string_view kind, const Block& block) const;
  /// Bytes per second of an endpoint by one path, and of a process by all paths.
  struct Pair {
    std::optional<double> sent, received;
  };
  Pair of(const Process& process, const Block& endpoint, const Path& path) const;
  Pair of(const Process& process) const;
  /// The same of a peer of a process.
  Pair of_peer(const Process& process, const Block& peer) const;
  /// Of one processor, that the process used meanwhile.
  double load(const Process& process) const;
  /// The same of any counter.
  std::optional<double> of(const Process& process, const Block& endpoint,
                           std::string_view counter) const;

 private:
  const Process* before(const Process& process) const;
  std::optional<double> rate(std::optional<uint64_t> from, std::optional<uint64_t> to) const;

  std::unordered_map<pid_t, const Process*> x_by_pid;  ///< of the first look
  double x_seconds = 0;
};

}  // namespace fi_erdma
