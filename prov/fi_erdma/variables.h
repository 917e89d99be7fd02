#pragma once

#include <map>
#include <string>

#include "fi_erdma/json.h"

namespace fi_erdma {

/// Variables FI_ERDMA_* of this environment that are not known, with the names that were probably
/// meant: [{"name", "meant"}]. Empty if `known` is empty, as it is when no provider was found.
Json unknown_variables(const std::map<std::string, std::string>& known);

}  // namespace fi_erdma
