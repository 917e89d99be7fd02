#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "fi_erdma/commands.h"
#include "fi_erdma/endpoints.h"
#include "fi_erdma/json.h"
#include "fi_erdma/libfabric.h"
#include "fi_erdma/processes.h"
#include "fi_erdma/variables.h"

namespace fi_erdma {
namespace {

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
    if (const Block* const shown = self.shown()) json["provider_version"] = shown->text("provider");
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
    for (const Json& variable : json["unknown"]) fmt::print("{}\n", unknown_text(variable));
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
    const Block* const shown = process.shown();
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
