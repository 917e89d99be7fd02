#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/libfabric.h"
#include "fi_erdma/processes.h"
#include "fi_erdma/variables.h"

namespace fi_erdma {
namespace {

bool is_variable(std::string_view name) {
  return name.starts_with("FI_ERDMA_") && name.size() > std::string_view("FI_ERDMA_").size() &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == name.npos;
}

/// Parses "NAME=value NAME=value" of a page. A value may contain blanks, a name does not.
std::vector<std::pair<std::string, std::string>> settings_of(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (size_t at = 0; at < text.size();) {
    const size_t next = std::min(text.find(" FI_ERDMA_", at), text.size());
    const std::string setting = text.substr(at, next - at);
    const size_t equals = std::min(setting.find('='), setting.size());
    settings.emplace_back(setting.substr(0, equals),
                          equals < setting.size() ? setting.substr(equals + 1) : "");
    at = next + 1;
  }
  return settings;
}

std::set<std::string> names_in(const std::string& list) {
  std::set<std::string> names;
  std::istringstream words(list);
  for (std::string name; std::getline(words, name, ',');) names.insert(name);
  return names;
}

Json settings_to_json(const Block& endpoint) {
  const std::set<std::string> changed = names_in(endpoint.text("changed"));
  Json json = Json::object();
  for (const auto& [name, value] : settings_of(endpoint.text("settings")))
    if (is_variable(name)) json[name] = {{"value", value}, {"changed", changed.contains(name)}};
  return json;
}

/// The table of the path for each message size under the current settings.
class Sizes {
 public:
  explicit Sizes(const Json& endpoint) : x_endpoint(endpoint) {
    if (text("this_host").starts_with("shared memory"))
      add("this host", "FI_ERDMA_SHM_EAGER_SIZE", "ring of shared memory", long_here());
    if (text("other_hosts").starts_with("RDMA"))
      add("other hosts", "FI_ERDMA_NIC_EAGER_SIZE", "packet of the NIC", long_there());
  }
  const Json& json() const { return x_json; }

 private:
  std::string text(const char* name) const { return x_endpoint[name].get<std::string>(); }
  std::string setting(const char* name) const {
    const Json& settings = x_endpoint["settings"];
    return settings.contains(name) ? settings[name]["value"].get<std::string>() : "";
  }
  std::string long_here() const {
    return setting("FI_ERDMA_CMA") == "off" ? "copied through shared memory"
                                            : "CMA where the kernel permits, else copied";
  }
  std::string long_there() const {
    const std::string way = setting("FI_ERDMA_RENDEZVOUS") == "read" ? "RDMA READ" : "RDMA WRITE";
    return way +
           (text("other_hosts").starts_with("RDMA of copies") ? ", of copies" : ", zero copy");
  }
  /// Prints nothing without a number, since the page may hold anything.
  void add(const char* where, const char* limit, const char* up_to_it, const std::string& beyond) {
    const std::string word = setting(limit);
    uint64_t most = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), most);
    if (error != std::errc() || end != word.data() + word.size() || most == UINT64_MAX) return;
    x_json.push_back({{"where", where}, {"from", 0}, {"to", most}, {"way", up_to_it}});
    x_json.push_back({{"where", where}, {"from", most + 1}, {"to", nullptr}, {"way", beyond}});
  }

  const Json& x_endpoint;
  Json x_json = Json::array();
};

Json endpoints_to_json(const Snapshot& snapshot) {
  Json json = Json::array();
  const BlockKind* const endpoints = snapshot.kind("endpoint");
  for (const Block& endpoint : endpoints ? endpoints->blocks : std::vector<Block>()) {
    Json one = Json::object();
    for (const char* const name : {"address", "device", "other_hosts", "this_host", "gpu_memory"})
      one[name] = endpoint.text(name);
    one["settings"] = settings_to_json(endpoint);
    one["sizes"] = Sizes(one).json();
    json.push_back(std::move(one));
  }
  return json;
}

void print_endpoint(const Json& endpoint) {
  const auto text = [&](const char* name) { return endpoint[name].get<std::string>(); };
  fmt::print("endpoint {} on {}\n", text("address"), text("device"));
  fmt::print("  other hosts  {}\n  this host    {}\n  GPU memory   {}\n", text("other_hosts"),
             text("this_host"), text("gpu_memory"));
  for (const Json& size : endpoint["sizes"]) {
    const std::string to = size["to"].is_null() ? "" : std::to_string(size["to"].get<uint64_t>());
    fmt::print("  {:<11}  {:>6}..{:<8} {}\n", size["where"].get<std::string>(),
               size["from"].get<uint64_t>(), to, size["way"].get<std::string>());
  }
  for (const auto& [name, setting] : endpoint["settings"].items())
    fmt::print("  {:<28} {}{}\n", name, setting["value"].get<std::string>(),
               setting["changed"].get<bool>() ? "" : "  (default)");
}

/// Shows what a new process gets on this host: opens endpoints and reads their page.
Json try_here() {
  Json json = document("info");
  std::string fault;
  const auto libfabric = Libfabric::open(fault);
  if (!libfabric) {
    json["fault"] = "there is no libfabric: " + fault;
    return json;
  }
  json["libfabric"] = {{"version", libfabric->version()}, {"path", libfabric->path()}};
  json["endpoints"] = Json::array();
  const int status = libfabric->try_endpoints([&] {
    const Process self = this_process();
    if (!self.page.snapshot) {
      json["page"] = self.page.fault;
      return;
    }
    if (const Block* const shown = self.page.snapshot->process())
      json["provider_version"] = shown->text("provider");
    for (Json& endpoint : endpoints_to_json(*self.page.snapshot))
      json["endpoints"].push_back(std::move(endpoint));
  });
  json["provider"] = libfabric->provider_path();
  const auto known = libfabric->variables();
  json["unknown"] = unknown_variables(known);
  if (json["provider"] == "")
    json["fault"] = "libfabric found no liberdma-fi.so: FI_PROVIDER_PATH names its folder";
  else if (status)
    json["fault"] = "no endpoint can be opened: " + libfabric->error_text(status);
  return json;
}

int info_here(const Request& request) {
  const Json json = try_here();
  const bool fault = json.contains("fault");
  const bool unknown = json.contains("unknown") && !json["unknown"].empty();
  if (request.json) {
    print(json);
    return fault || unknown;
  }
  if (json.contains("libfabric"))
    fmt::print("libfabric {}  {}\n", json["libfabric"]["version"].get<std::string>(),
               json["libfabric"]["path"].get<std::string>());
  const std::string version = json.value("provider_version", std::string());
  if (json.contains("provider"))
    fmt::print("provider{}  {}\n", version.empty() ? "" : " " + version,
               json["provider"].get<std::string>());
  if (json.contains("endpoints"))
    for (const Json& endpoint : json["endpoints"]) print_endpoint(endpoint);
  if (unknown)
    for (const Json& variable : json["unknown"])
      fmt::print("{} does not exist in this version{}\n", variable["name"].get<std::string>(),
                 variable["meant"].is_null()
                     ? ""
                     : ". Did you mean " + variable["meant"].get<std::string>() + "?");
  if (json.contains("page"))
    fmt::print("settings are not shown: {}\n", json["page"].get<std::string>());
  if (fault) fmt::print(stderr, "fi_erdma: {}\n", json["fault"].get<std::string>());
  return fault || unknown;
}

/// "pid 4711  rank 3 of 16  job 88121  application  erdma 0.1  libfabric 1.17"
std::string title_of(const Json& process) {
  std::string title = fmt::format("pid {}", process["pid"].get<int>());
  if (process.contains("rank")) title += fmt::format("  rank {}", process["rank"].get<uint64_t>());
  if (process.contains("ranks")) title += fmt::format(" of {}", process["ranks"].get<uint64_t>());
  const auto add = [&](const char* before, const char* name) {
    if (process.contains(name) && process[name] != "")
      title += before + process[name].get<std::string>();
  };
  add("  job ", "job");
  add("  ", "command");
  add("  erdma ", "provider");
  add("  libfabric ", "libfabric");
  return title;
}

int info_of(const Request& request) {
  Json json = document("info");
  json["processes"] = Json::array();
  int status = 0;
  for (const Process& process : processes(request.pids)) {
    Json one = {{"pid", process.pid}};
    const Block* const shown = process.page.snapshot ? process.page.snapshot->process() : nullptr;
    for (const char* const name : {"rank", "ranks"})
      if (const auto number = shown ? shown->number(name) : std::nullopt) one[name] = *number;
    for (const char* const name : {"command", "job", "provider", "libfabric"})
      if (shown) one[name] = shown->text(name);
    if (process.page.snapshot)
      one["endpoints"] = endpoints_to_json(*process.page.snapshot);
    else
      one["fault"] = process.page.fault;
    if (!process.page.snapshot) status = 1;
    json["processes"].push_back(std::move(one));
  }
  if (request.json) {
    print(json);
    return status;
  }
  for (const Json& process : json["processes"]) {
    const int pid = process["pid"].get<int>();
    if (process.contains("fault"))
      fmt::print(stderr, "fi_erdma: {}: {}\n", pid, process["fault"].get<std::string>());
    else
      fmt::print("{}\n", title_of(process));
    if (process.contains("endpoints"))
      for (const Json& endpoint : process["endpoints"]) print_endpoint(endpoint);
  }
  return status;
}

}  // namespace

int run_info(const Request& request) {
  return request.pids.empty() ? info_here(request) : info_of(request);
}

}  // namespace fi_erdma
