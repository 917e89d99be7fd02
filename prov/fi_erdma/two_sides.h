#pragma once

#include <functional>
#include <string>

#include "fi_erdma/json.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma {

/// Runs the body in two processes. Returns the object that the body of the client returned, or
/// {"error"} if a side failed or died. To be called in a process that has not called libfabric.
Json run_two_sides(const std::string& task, const pair::Options& options,
                   const std::function<Json(pair::Side, pair::Channel&)>& body);

}  // namespace fi_erdma
