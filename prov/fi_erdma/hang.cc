#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/rates.h"

namespace fi_erdma {
namespace {

constexpr double kInterval = 1;  ///< seconds between two looks

/// What the kernel and the counters tell. Who waits for whom needs what no provider shows yet.
struct Verdict {
  const char* word;  ///< for programs
  std::string text;
  bool works = true;
};

/// Of one that the kernel lets run.
Verdict verdict_by_counters(const Process& process, const Rates& rates) {
  const Rates::Pair rate = rates.of(process);
  if (!rate.sent) return {"unknown", "began, or opened its page, just now"};
  if (*rate.sent > 0 || rate.received.value_or(0) > 0)
    return {"moves", fmt::format("moves bytes: {} out, {} in", rate_text(rate.sent),
                                 rate_text(rate.received))};
  const double percent = 100 * rates.load(process);
  if (percent >= 10)
    return {"runs", fmt::format("MOVES NO BYTES, and uses {:.0f} % of a processor: it computes, or "
                                "polls for what does not come",
                                percent)};
  return {"waits", "MOVES NO BYTES, and sleeps"};
}

Verdict verdict_on(const Process& process, const Rates& rates) {
  switch (process.state) {
    case 'T':
      return {"stopped", "IS STOPPED by a signal (kill -CONT lets it go on)", false};
    case 't':
      return {"traced", "IS STOPPED by a debugger", false};
    case 'Z':
    case 'X':
      return {"ended", "HAS ENDED, and its parent did not ask for its status", false};
    default:
      return verdict_by_counters(process, rates);
  }
}

std::string rank_of(const Process& process) {
  const Block* const shown = process.page.snapshot ? process.page.snapshot->process() : nullptr;
  const auto rank = shown ? shown->number("rank") : std::nullopt;
  return rank ? fmt::format("rank {}  ", *rank) : std::string();
}

}  // namespace

int run_hang(const Request& request) {
  const Look before = look(request.pids);
  const double interval = request.interval > 0 ? request.interval : kInterval;
  std::this_thread::sleep_for(std::chrono::duration<double>(interval));
  const Look now = look(request.pids);
  const Rates rates(&before, now);
  const auto& found = now.processes;
  Json json = document("hang");
  json["processes"] = Json::array();
  int status = 0;
  for (const Process& process : found) {
    const Verdict verdict = verdict_on(process, rates);
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
