#pragma once

#include <set>
#include <vector>

#include "fi_erdma/rates.h"

namespace fi_erdma {

/// A look at processes that were asked before what waits in them.
struct AskedLook {
  Look look;
  std::set<pid_t> asked;     ///< that could be asked
  std::set<pid_t> answered;  ///< of these
};

/// Returns once everybody has answered, and after so many seconds at the latest.
AskedLook look_and_ask(const std::vector<pid_t>& pids, double longest_seconds);

}  // namespace fi_erdma
