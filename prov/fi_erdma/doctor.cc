#include "fi_erdma/doctor.h"

#include <fmt/core.h>

#include <algorithm>

namespace fi_erdma {
namespace {

const char* word(Grade grade) {
  return grade == Grade::ok ? "ok" : grade == Grade::slower ? "SLOW" : "NO";
}

Json to_json(const Finding& finding) {
  return {{"group", finding.group},
          {"grade", word(finding.grade)},
          {"code", finding.code.empty() ? Json() : Json(finding.code)},
          {"text", finding.text},
          {"more", finding.more}};
}

void print(const Report& report) {
  std::string group;
  size_t slower = 0, broken = 0;
  for (const Finding& finding : report.findings()) {
    if (finding.group != group) fmt::print("{}\n", group = finding.group);
    fmt::print("  {:<5} {}{}\n", word(finding.grade), finding.text,
               finding.code.empty() ? "" : "  [" + finding.code + "]");
    for (const std::string& line : finding.more) fmt::print("          {}\n", line);
    slower += finding.grade == Grade::slower;
    broken += finding.grade == Grade::broken;
  }
  if (slower + broken == 0)
    fmt::print("\nNo trouble was found.\n");
  else
    fmt::print(
        "\nDo not work: {}. Slower than need be: {}. Each code is a heading of "
        "docs/troubleshooting.md.\n",
        broken, slower);
}

}  // namespace

Grade Report::worst() const {
  Grade worst = Grade::ok;
  for (const Finding& finding : x_findings) worst = std::max(worst, finding.grade);
  return worst;
}

std::vector<std::string> with_said(std::vector<std::string> more, const Outcome& outcome) {
  more.insert(more.end(), outcome.said.begin(), outcome.said.end());
  return more;
}

Variables telling(Variables variables) {
  for (const auto& [name, value] :
       {std::pair("FI_LOG_LEVEL", ""), {"FI_ERDMA_LOG", "warn"}, {"FI_ERDMA_STAT", "auto"}})
    variables.emplace_back(name, value);
  return variables;
}

int run_doctor(const Request& request) {
  Report report;
  const Offer offer = check_library(report);
  if (offer.any) {
    check_bytes(report, offer);
    check_clients(report, request);
  }
  check_process(report, offer);
  check_devices(report, request, offer);
  check_gpu(report);
  if (request.json) {
    Json json = document("doctor");
    json["findings"] = Json::array();
    for (const Finding& finding : report.findings()) json["findings"].push_back(to_json(finding));
    print(json);
  } else {
    print(report);
  }
  return int(report.worst());
}

}  // namespace fi_erdma
