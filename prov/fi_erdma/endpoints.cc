#include "fi_erdma/endpoints.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fi_erdma/costs.h"

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
    x_json.push_back({{"where", where}, {"from", 0}, {"to", most}, {"path", up_to_it}});
    x_json.push_back({{"where", where}, {"from", most + 1}, {"to", nullptr}, {"path", beyond}});
  }

  const Json& x_endpoint;
  Json x_json = Json::array();
};

}  // namespace

Json endpoints_to_json(const Snapshot& snapshot) {
  Json json = Json::array();
  PeersOf peers = peers_of(snapshot);
  for (const Block& endpoint : snapshot.blocks("endpoint")) {
    Json one = Json::object();
    for (const char* const name : {"address", "device", "other_hosts", "this_host", "gpu_memory"})
      one[name] = endpoint.text(name);
    one["settings"] = settings_to_json(endpoint);
    one["sizes"] = Sizes(one).json();
    one["slower"] = costs_of(endpoint, peers[endpoint.index]);
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
               size["from"].get<uint64_t>(), to, size["path"].get<std::string>());
  }
  for (const Json& cost : endpoint["slower"])
    fmt::print("  slower       {}\n", cost.get<std::string>());
  for (const auto& [name, setting] : endpoint["settings"].items())
    fmt::print("  {:<28} {}{}\n", name, setting["value"].get<std::string>(),
               setting["changed"].get<bool>() ? "" : "  (default)");
}

}  // namespace fi_erdma
