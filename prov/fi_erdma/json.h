#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fi_erdma/processes.h"
#include "fi_erdma/rates.h"

namespace fi_erdma {

using Json = nlohmann::ordered_json;

/// Converts a whole page, including fields that this version does not know. Facts become members of
/// their block, counters and gauges members of "counters" and "gauges". Unknown values are null.
/// prov/fi_erdma/fi_erdma.schema.json describes the result.
Json to_json(const Process& process, bool tags = false);

/// Adds the rate of each counter to the endpoints in a process that to_json() converted.
void add_rates(Json& json, const Process& process, const Rates& rates);

/// An empty document of a subcommand: {"schema": "fi_erdma.NAME/1", "time": ..., ...}.
Json document(std::string_view name);
void print(const Json& json);
/// The text of a document on one line.
std::string one_line(const Json& json);
/// The object that a text holds; null if it holds anything else.
Json object_in(const std::string& text);

/// The input ends before its first document or within one, as if its writer was killed.
struct EndsEarly : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads concatenated documents and calls `take` with each. Throws EndsEarly, or another
/// std::runtime_error if the input cannot be read or a document does not have this schema and an
/// array of that name.
void for_each_document(std::istream& from, std::string_view name, const char* array,
                       const std::function<void(Json&)>& take);
std::string host_name();

}  // namespace fi_erdma
