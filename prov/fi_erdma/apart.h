#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/json.h"

namespace fi_erdma {

/// What a trial found.
struct Outcome {
  std::string fault;              ///< empty: it ended by itself
  Json result;                    ///< of the work, an object; null if there was a fault
  std::vector<std::string> said;  ///< lines that it printed: of the provider, as a rule
};

/// Variables of a trial; an empty value unsets.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// Does the work in a process of its own, since it may end or hang: it is killed after a time that
/// it never needs. This process must have no other thread, and may not ignore SIGCHLD.
Outcome try_apart(const Variables& variables, const std::function<Json()>& work,
                  int longest_seconds = 60);

/// Empty if it ended well: its fault, or the "error" that the work found, with the "step" before
/// it.
std::string trouble_of(const Outcome& outcome);

/// Of the work: ends its process with this result, whatever the process holds.
[[noreturn]] void end_trial(const Json& result);

}  // namespace fi_erdma
