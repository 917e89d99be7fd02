#pragma once

#include <string>
#include <vector>

#include "fi_erdma/json.h"
#include "fi_erdma/rates.h"

namespace fi_erdma {

/// What is not shown of processes, in one sentence for each cause and process: programs that this
/// user may not look into, further pages, and blocks of a page. Empty if everything is shown.
std::vector<std::string> gaps_of(const Look& look);
/// Of the document of one process. It may hold anything. `name`: of the process, for people.
std::vector<std::string> gaps_of(const Json& process, const std::string& name);
/// The sentence on programs that a user may not look into; none if the number is 0.
std::vector<std::string> gaps_of_refused(uint64_t refused);

/// The number of open endpoints that have no block in the page of a process.
uint64_t hidden_endpoints(const Process& process);

/// One line each on standard error.
void print_gaps(const std::vector<std::string>& gaps);

}  // namespace fi_erdma
