#include "fi_erdma/gaps.h"

#include <fmt/core.h>

#include <cstdio>

#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

struct Gaps {
  uint64_t left_out = 0, hidden = 0, unsettled = 0, more_pages = 0;
};

void add(std::vector<std::string>& to, const std::string& name, const Gaps& gaps) {
  const auto say = [&](uint64_t count, const char* one, const char* many, const char* rest) {
    if (count)
      to.push_back(fmt::format("{}: {} {} {}", name, count, count == 1 ? one : many, rest));
  };
  say(gaps.more_pages, "further statistics page is", "further statistics pages are",
      "not shown: the process has several copies of the provider");
  say(gaps.left_out, "endpoint or peer was", "endpoints or peers were",
      "left out: the statistics page was full");
  say(gaps.hidden, "open endpoint is", "open endpoints are",
      "not shown: what waits there is unknown, and their bytes are counted once they close");
  say(gaps.unsettled, "block is", "blocks are",
      "missing or incomplete: the process was changing the statistics page");
}

}  // namespace

std::vector<std::string> gaps_of_refused(uint64_t refused) {
  if (!refused) return {};
  return {
      fmt::format("{} {} not looked at: other users run them, or the kernel protects them; "
                  "root sees those that use erdma",
                  refused, refused == 1 ? "process was" : "processes were")};
}

std::vector<std::string> gaps_of(const Look& look) {
  std::vector<std::string> gaps = gaps_of_refused(look.refused);
  for (const Process& process : look.processes) {
    if (!process.page.snapshot) continue;
    const Block* const shown = process.shown();
    add(gaps, std::to_string(process.pid),
        {shown ? shown->number("left_out").value_or(0) : 0, hidden_endpoints(process),
         process.page.snapshot->unsettled(), process.more_pages});
  }
  return gaps;
}

std::vector<std::string> gaps_of(const Json& process, const std::string& name) {
  const auto shown = process.find("process");
  const bool counts = shown != process.end() && shown->is_object() && shown->contains("counters");
  std::vector<std::string> gaps;
  add(gaps, name,
      {counts ? number_of((*shown)["counters"], "left_out", 0) : 0,
       counts ? gauge_of(*shown, "hidden_endpoints") : 0, number_of(process, "unsettled", 0),
       number_of(process, "more_pages", 0)});
  return gaps;
}

uint64_t hidden_endpoints(const Process& process) {
  const Block* const shown = process.shown();
  return shown ? shown->number("hidden_endpoints").value_or(0) : 0;
}

void print_gaps(const std::vector<std::string>& gaps) {
  for (const std::string& gap : gaps) fmt::print(stderr, "fi_erdma: {}\n", gap);
}

}  // namespace fi_erdma
