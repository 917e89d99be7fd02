#pragma once

#include <map>
#include <string>

#include "fi_erdma/json.h"

namespace fi_erdma {

/// Variables FI_ERDMA_* in this environment that are not among the known ones, with those that were
/// probably meant: [{"name", "meant"}]. Nothing is known where no provider was found: then nothing
/// is unknown.
Json unknown_variables(const std::map<std::string, std::string>& known);

}  // namespace fi_erdma
