#include "fi_erdma/json.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <istream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fi_erdma {
namespace {

Json number_of(const Block& block, const std::string& name) {
  const auto number = block.number(name);
  return number ? Json(*number) : Json(nullptr);
}

/// Whether a field of a page may become a member of this name. The page may hold anything: it must
/// not replace members that this program sets, nor put numbers where readers expect text.
bool is_allowed(const FieldInfo& field) {
  constexpr std::string_view kOwn[] = {"index", "counters", "gauges", "rates", "stands"};
  constexpr std::string_view kTexts[] = {
      "host",       "command",     "launcher", "job",       "provider",  "path",
      "libfabric",  "address",     "device",   "changed",   "settings",  "this_host",
      "gpu_memory", "other_hosts", "link",     "send_kind", "sends_for", "matched_for"};
  const auto is_it = [&](std::string_view name) { return field.name == name; };
  if (std::ranges::any_of(kOwn, is_it)) return false;
  return field.type == layout::Type::text || std::ranges::none_of(kTexts, is_it);
}

bool is_tag(const std::string& name) {
  return name.ends_with("_tag") || name.ends_with("_ignore");
}

Json to_json(const BlockKind& kind, const Block& block, bool tags) {
  Json json = {{"index", block.index}};
  Json counters = Json::object(), gauges = Json::object();
  for (const FieldInfo& field : kind.fields) {
    if (!is_allowed(field) || (!tags && is_tag(field.name))) continue;
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

Json to_json(const Snapshot& snapshot, std::string_view name, bool tags) {
  Json list = Json::array();
  if (const BlockKind* const kind = snapshot.kind(name))
    for (const Block& block : kind->blocks) list.push_back(to_json(*kind, block, tags));
  return list;
}

}  // namespace

Json to_json(const Process& process, bool tags) {
  Json json = {{"pid", process.pid},
               {"state", process.state ? Json(std::string(1, process.state)) : Json()}};
  if (!process.page.snapshot) {
    json["fault"] = process.page.fault;
    return json;
  }
  const Snapshot& snapshot = *process.page.snapshot;
  const Json shown = to_json(snapshot, "process", tags);
  json["process"] = shown.empty() ? Json() : shown.front();
  json["endpoints"] = to_json(snapshot, "endpoint", tags);
  json["peers"] = to_json(snapshot, "peer", tags);
  json["unsettled"] = snapshot.unsettled();
  json["more_pages"] = process.more_pages;
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

std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json object_in(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json();
}

void for_each_document(std::istream& from, std::string_view name, const char* array,
                       const std::function<void(Json&)>& take) try {
  const std::string schema = "fi_erdma." + std::string(name) + "/1";
  const std::string output = "the output of fi_erdma " + std::string(name) + " --json";
  const auto refuse = [&](const char* why) {
    throw std::runtime_error("what came is not " + output + ": " + why);
  };
  bool came = false;
  while ((from >> std::ws).good()) {
    came = true;
    Json document;
    try {
      from >> document;
    } catch (const Json::exception&) {
      if (from.eof()) throw EndsEarly(output + " ends within a document");
      refuse("it is no JSON");
    }
    const bool sound = document.is_object() && document.contains("schema") &&
                       document["schema"] == schema && document.contains(array) &&
                       document[array].is_array();
    if (!sound) refuse("it is other JSON");
    take(document);
  }
  if (from.bad()) throw std::runtime_error("what came cannot be read");
  if (!came) throw EndsEarly(output + " is empty");
} catch (const std::ios_base::failure&) {
  // The buffer of a file throws this. Some functions of streams pass it on, others set bad().
  throw std::runtime_error("what came cannot be read");
}

std::string host_name() {
  char name[256] = "";
  (void)gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace fi_erdma
