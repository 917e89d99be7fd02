#include "fi_erdma/two_sides.h"

#include "fi_erdma/paper.h"

namespace fi_erdma {
Json run_two_sides(const std::string& task, const pair::Options& options,
                   const std::function<Json(pair::Side, pair::Channel&)>& body) {
  const Paper found;
  const auto both = [&] {
    pair::before_end([&](pair::Status, const char* text) {
      // The other side then loses its peer.
      if (object_in(found.read()).contains("error")) return;
      found.write(one_line({{"error", text}}));
    });
    return run_sides(task, options, [&](pair::Side side, pair::Channel& channel) {
      const Json json = body(side, channel);
      if (side == pair::Side::client) found.write(json.dump());
      return int(pair::kPassed);
    });
  };
  std::string death;
  const int status = pair::run_alone(both, &death);
  Json json = object_in(found.read());
  if (json.is_null()) json = {{"error", death.empty() ? "it told nothing" : death}};
  if (status && !json.contains("error")) json["error"] = "a side failed";
  return json;
}

}  // namespace fi_erdma
