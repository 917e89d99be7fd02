#include "fi_erdma/two_sides.h"

#include "fi_erdma/paper.h"

namespace fi_erdma {
namespace {

bool has_error(const Paper& found) {
  const Json json = Json::parse(found.read(), nullptr, false);
  return json.is_object() && json.contains("error");
}

}  // namespace

Json run_two_sides(const std::string& task, const pair::Options& options,
                   const std::function<Json(pair::Side, pair::Channel&)>& body) {
  const Paper found;
  const auto both = [&] {
    pair::before_end([&](pair::Status, const char* text) {
      // The other side then loses its peer.
      if (has_error(found)) return;
      found.write(Json({{"error", text}}).dump(-1, ' ', false, Json::error_handler_t::replace));
    });
    return run_sides(task, options, [&](pair::Side side, pair::Channel& channel) {
      const Json json = body(side, channel);
      if (side == pair::Side::client) found.write(json.dump());
      return int(pair::kPassed);
    });
  };
  std::string death;
  const int status = pair::run_alone(both, &death);
  Json json = Json::parse(found.read(), nullptr, false);
  if (!json.is_object()) json = {{"error", death.empty() ? "it told nothing" : death}};
  if (status && !json.contains("error")) json["error"] = "a side failed";
  return json;
}

}  // namespace fi_erdma
