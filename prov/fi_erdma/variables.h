#pragma once

#include <map>
#include <string>

#include "fi_erdma/json.h"

namespace fi_erdma {

/// Variables FI_ERDMA_* of this environment that are not known, with the names that were probably
/// meant: [{"name", "meant"}]. Empty if `known` is empty, as it is when no provider was found.
Json unknown_variables(const std::map<std::string, std::string>& known);
/// "FI_ERDMA_X does not exist in this version. Did you mean FI_ERDMA_Y?", of an element of that.
std::string unknown_text(const Json& variable);

}  // namespace fi_erdma
