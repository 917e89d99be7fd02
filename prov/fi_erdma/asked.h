#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "fi_erdma/rates.h"

namespace fi_erdma {

/// Endpoints, each as its process and the index of its block.
using Endpoints = std::set<std::pair<pid_t, uint64_t>>;

/// A look at processes, taken after they were asked which operations wait in them.
struct AskedLook {
  Look look;
  std::set<pid_t> asked;     ///< the processes that could be asked
  std::set<pid_t> answered;  ///< those of them that answered
  Endpoints endpoints;       ///< the endpoints that answered
  /// Processes without an answer that opened or closed an endpoint meanwhile, so that they do call
  /// libfabric.
  std::set<pid_t> changed;
};

/// Looks at processes, and waits for them. A test has a clock of its own.
struct Observer {
  std::function<Look()> look;
  std::function<double()> seconds;  ///< on a clock that is never set back
  std::function<void(double seconds)> sleep;
};

/// Returns when all endpoints of the processes have answered, or after longest_seconds. Once the
/// looks have allocated kMostCostOfAll bytes in pages, which forged ones can give back each time,
/// there is only one more look, at the end.
AskedLook look_and_ask(const Observer& observer, double longest_seconds);
AskedLook look_and_ask(const std::vector<pid_t>& pids, double longest_seconds);

}  // namespace fi_erdma
