#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fi_erdma/processes.h"
#include "fi_erdma/rates.h"

namespace fi_erdma {

using Json = nlohmann::ordered_json;

/// All that a page says, also what this version does not know: facts of a block stand in it by
/// name, and counters and gauges below "counters" and "gauges". What is unknown is null.
/// prov/fi_erdma/fi_erdma.schema.json describes it.
Json to_json(const Process& process, bool tags = false);

/// Adds to the endpoints in what to_json() made of a process how fast each of their counters grows.
void add_rates(Json& json, const Process& process, const Rates& rates);

/// The frame of what a subcommand prints: {"schema": "fi_erdma.NAME/1", "time": ..., ...}.
Json document(std::string_view name);
void print(const Json& json);

/// Calls `take` with each document of standard input, one behind the other. Throws
/// std::runtime_error if one is not of this schema and has no array of that name, or none comes.
void for_each_document(std::string_view name, const char* array,
                       const std::function<void(Json&)>& take);
std::string host_name();

}  // namespace fi_erdma
