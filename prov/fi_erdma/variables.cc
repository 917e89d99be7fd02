#include "fi_erdma/variables.h"

#include <unistd.h>

#include <string_view>
#include <vector>

#include "util/spelling.h"

namespace fi_erdma {
namespace {

constexpr std::string_view kPrefix = "FI_ERDMA_";

}  // namespace

Json unknown_variables(const std::map<std::string, std::string>& known) {
  if (known.empty()) return Json::array();
  std::vector<std::string_view> names;
  for (const auto& [name, help] : known) names.push_back(name);
  Json json = Json::array();
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with(kPrefix) || known.contains(name)) continue;
    const std::string_view meant = erdma::util::nearest_variable(name, names, kPrefix);
    json.push_back({{"name", name}, {"meant", meant.empty() ? Json() : Json(std::string(meant))}});
  }
  return json;
}

std::string unknown_text(const Json& variable) {
  const Json& meant = variable["meant"];
  return variable["name"].get<std::string>() + " does not exist in this version" +
         (meant.is_null() ? "" : ". Did you mean " + meant.get<std::string>() + "?");
}

}  // namespace fi_erdma
