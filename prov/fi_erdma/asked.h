#pragma once

#include <set>
#include <utility>
#include <vector>

#include "fi_erdma/rates.h"

namespace fi_erdma {

/// A look at processes, taken after they were asked which operations wait in them.
struct AskedLook {
  Look look;
  std::set<pid_t> asked;     ///< the processes that could be asked
  std::set<pid_t> answered;  ///< those of them that answered
  /// The endpoints that answered, each with the index of its block.
  std::set<std::pair<pid_t, uint32_t>> endpoints;
  /// Processes without an answer that opened or closed an endpoint meanwhile, so that they do call
  /// libfabric.
  std::set<pid_t> changed;
};

/// Who must answer before the time is over.
enum class Until { kProcesses, kEndpoints };
/// Returns when all processes, or all their endpoints, have answered, or after longest_seconds.
AskedLook look_and_ask(const std::vector<pid_t>& pids, double longest_seconds,
                       Until until = Until::kProcesses);

}  // namespace fi_erdma
