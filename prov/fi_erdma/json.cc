#include "fi_erdma/json.h"

#include <chrono>
#include <cstdio>
#include <string>

namespace fi_erdma {
namespace {

Json number_of(const Block& block, const std::string& name) {
  const auto number = block.number(name);
  return number ? Json(*number) : Json(nullptr);
}

Json to_json(const BlockKind& kind, const Block& block) {
  Json json = {{"index", block.index}};
  Json counters = Json::object(), gauges = Json::object();
  for (const FieldInfo& field : kind.fields) {
    if (field.type == layout::Type::text)
      json[field.name] = block.text(field.name);
    else if (field.meaning == layout::Meaning::counter)
      counters[field.name] = number_of(block, field.name);
    else if (field.meaning == layout::Meaning::gauge)
      gauges[field.name] = number_of(block, field.name);
    else
      json[field.name] = number_of(block, field.name);
  }
  json["counters"] = std::move(counters);
  json["gauges"] = std::move(gauges);
  return json;
}

Json to_json(const Snapshot& snapshot, std::string_view name) {
  Json list = Json::array();
  if (const BlockKind* const kind = snapshot.kind(name))
    for (const Block& block : kind->blocks) list.push_back(to_json(*kind, block));
  return list;
}

unsigned unsettled_in(const Snapshot& snapshot) {
  unsigned blocks = 0;
  for (const BlockKind& kind : snapshot.kinds) blocks += kind.unsettled;
  return blocks;
}

}  // namespace

Json to_json(const Process& process) {
  Json json = {{"pid", process.pid},
               {"state", process.state ? Json(std::string(1, process.state)) : Json()}};
  if (!process.page.snapshot) {
    json["fault"] = process.page.fault;
    return json;
  }
  const Snapshot& snapshot = *process.page.snapshot;
  const Json shown = to_json(snapshot, "process");
  json["process"] = shown.empty() ? Json() : shown.front();
  json["endpoints"] = to_json(snapshot, "endpoint");
  json["peers"] = to_json(snapshot, "peer");
  json["unsettled"] = unsettled_in(snapshot);
  return json;
}

void add_rates(Json& json, const Process& process, const Rates& rates) {
  const BlockKind* const kind = process.page.snapshot->kind("endpoint");
  if (!kind) return;
  for (size_t i = 0; i < kind->blocks.size(); ++i) {
    Json all = Json::object();
    for (const FieldInfo& field : kind->fields) {
      if (field.meaning != layout::Meaning::counter) continue;
      const auto rate = rates.of(process, kind->blocks[i], field.name);
      all[field.name] = rate ? Json(*rate) : Json(nullptr);
    }
    json["endpoints"][i]["rates"] = std::move(all);
  }
}

Json document(std::string_view name) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {{"schema", "fi_erdma." + std::string(name) + "/1"},
          {"time", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()}};
}

void print(const Json& json) {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace);
  std::puts(text.c_str());
}

}  // namespace fi_erdma
