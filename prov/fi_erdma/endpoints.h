#pragma once

#include "fi_erdma/json.h"
#include "fi_erdma/snapshot.h"

namespace fi_erdma {

/// The endpoints of a page as `info` shows them: their paths, the variables, the path for each
/// message size under these, and what slower paths have cost so far.
Json endpoints_to_json(const Snapshot& snapshot);
/// Prints one of them for people.
void print_endpoint(const Json& endpoint);

}  // namespace fi_erdma
