#include <fmt/core.h>

#include <algorithm>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/processes.h"

namespace fi_erdma {
namespace {

/// What the kernel alone can tell. Who polls and who waits for whom needs counters which no
/// provider shows yet.
struct Verdict {
  const char* word;  ///< for programs
  const char* text;
  bool works;
};

Verdict verdict_on(const Process& process) {
  switch (process.state) {
    case 'T':
      return {"stopped", "IS STOPPED by a signal (kill -CONT lets it go on)", false};
    case 't':
      return {"traced", "IS STOPPED by a debugger", false};
    case 'Z':
    case 'X':
      return {"ended", "HAS ENDED, and its parent did not ask for its status", false};
    case 'D':
      return {"in_kernel", "was in the kernel at this moment, and not to be interrupted", true};
    default:
      return {"unknown", "runs or sleeps; its page does not tell whether it makes progress", true};
  }
}

std::string rank_of(const Process& process) {
  const Block* const shown = process.page.snapshot ? process.page.snapshot->process() : nullptr;
  const auto rank = shown ? shown->number("rank") : std::nullopt;
  return rank ? fmt::format("rank {}  ", *rank) : std::string();
}

}  // namespace

int run_hang(const Request& request) {
  const auto found = request.pids.empty() ? processes() : processes(request.pids);
  Json json = document("hang");
  json["processes"] = Json::array();
  int status = 0;
  for (const Process& process : found) {
    const Verdict verdict = verdict_on(process);
    const bool shows = process.page.snapshot.has_value();
    status = std::max(status, !verdict.works ? 2 : shows ? 0 : 1);
    json["processes"].push_back(to_json(process));
    json["processes"].back()["verdict"] = verdict.word;
    if (request.json) continue;
    if (shows || !verdict.works)
      fmt::print("{}pid {}  {}\n", rank_of(process), process.pid, verdict.text);
    else
      fmt::print(stderr, "fi_erdma: {}: {}\n", process.pid, process.page.fault);
  }
  if (request.json)
    print(json);
  else if (found.empty())
    fmt::print(stderr, "fi_erdma: no process of this user shows statistics\n");
  return status;
}

}  // namespace fi_erdma
