#include "fi_erdma/doctor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "fi_erdma/traffic.h"
#include "fi_erdma/waits.h"

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

/// Prints a finding.
void print_at_once(const Finding& finding, std::string& group) {
  if (finding.group != group) fmt::print("{}\n", group = finding.group);
  fmt::print("  {:<5} {}{}\n", word(finding.grade), finding.text,
             finding.code.empty() ? "" : "  [" + finding.code + "]");
  for (const std::string& line : finding.more) fmt::print("          {}\n", line);
  std::fflush(stdout);
}

void print_sum(const Report& report) {
  const auto count = [&](Grade grade) {
    return std::ranges::count(report.findings(), grade, &Finding::grade);
  };
  const auto slower = count(Grade::slower), broken = count(Grade::broken);
  if (slower + broken == 0)
    fmt::print("\nNo trouble was found.\n");
  else
    fmt::print(
        "\nNot working: {}. Slow: {}. docs/troubleshooting.md has a heading for each code.\n",
        broken, slower);
}

/// `fault`: why doctor ended before all checks; empty if it finished.
void print_json(const Report& report, const std::string& fault) {
  Json json = document("doctor");
  json["host"] = host_name();
  json["findings"] = Json::array();
  for (const Finding& finding : report.findings()) json["findings"].push_back(to_json(finding));
  if (!fault.empty()) json["fault"] = fault;
  print(json);
}

void check_all(Report& report, const Request& request) {
  const Offer offer = check_library(report);
  if (!request.peer.peer.empty()) {
    if (offer.any) check_peer(report, request.peer);
    return;
  }
  std::string cost;
  if (offer.any) {
    cost = check_bytes(report, request, offer);
    check_clients(report, request);
  }
  check_process(report, offer, cost);
  check_devices(report, request, offer);
  check_gpu(report, offer);
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

std::string place_text(const std::string& device, const Json& place) {
  const std::string interface = text_of(place, "interface");
  return interface.empty()
             ? device
             : fmt::format("{} ({}, MTU {})", device, interface, number_of(place, "mtu", 0));
}

std::string speed_text(const Outcome& outcome) {
  const double speed = outcome.result.value("speed", 0.0);
  const double copy = outcome.result.value("copy_speed", 0.0);
  if (speed <= 0) return {};
  const std::string text = " (1 MiB: " + rate_text(speed);
  return text + (copy > 0 ? "; a copy by this processor: " + rate_text(copy) + ")" : ")");
}

int run_doctor(const Request& request) {
  if (request.peer.serve) return serve_peer(request.peer);
  if (request.job) return compare_documents(request.results);
  std::string group;
  Report report([&](const Finding& finding) {
    if (!request.json) print_at_once(finding, group);
  });
  try {
    check_all(report, request);
  } catch (const std::exception& error) {
    if (request.json) print_json(report, error.what());
    throw;
  }
  if (request.json)
    print_json(report, "");
  else
    print_sum(report);
  return int(report.worst());
}

}  // namespace fi_erdma
