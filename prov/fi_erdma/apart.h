#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/json.h"

namespace fi_erdma {

/// The result of a trial.
struct Outcome {
  std::string fault;              ///< empty if the trial ended by itself with a result
  Json result;                    ///< the object that the work returned; null after a fault
  std::vector<std::string> said;  ///< lines that the trial printed: the provider's log
};

/// Environment variables of a trial; an empty value unsets the variable.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// Runs the work in a child process, since it may crash or hang. The child is killed after
/// longest_seconds. This process must have no other thread and must not ignore SIGCHLD.
Outcome try_apart(const Variables& variables, const std::function<Json()>& work,
                  int longest_seconds = 60);

/// Empty after success; otherwise the fault, or the "error" that the work returned, preceded by its
/// "step".
std::string trouble_of(const Outcome& outcome);

/// The work calls this to end its process with this result without any cleanup.
[[noreturn]] void end_trial(const Json& result);

}  // namespace fi_erdma
