#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "fi_erdma/doctor.h"
#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/pair/path_bytes.h"
#include "fi_erdma/paper.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

using pair::Channel;
using pair::Exchange;
using pair::PathBytes;
using pair::Side;

constexpr size_t kLong = size_t(1) << 20;
constexpr int kRounds = 2;  ///< that are compared, of each size
constexpr int kTimedRounds = 8;

/// Each in a process of its own at both sides: one that fails takes no other with it.
struct Trial {
  const char* what;
  Exchange::Kind kind;
  const char* code;
};
constexpr Trial kTrials[] = {{"messages", Exchange::Kind::message, "E209"},
                             {"RMA writes", Exchange::Kind::write, "E210"},
                             {"RMA reads", Exchange::Kind::read, "E211"}};

/// Processes of one kernel, in whichever containers.
std::string kernel_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

/// Both sides must be at the same trial.
std::string task_of(const Trial& trial) {
  return std::string("doctor: ") + trial.what;
}

/// What one side does.
Json try_with_peer(pair::Options options, const Trial& trial, Side side, Channel& channel) {
  Json json = {{"same", channel.swap(kernel_id()) == kernel_id()}};
  // The other side must be there again for the next trial when this one has waited in vain.
  options.limit_s /= 3;
  options.sizes = {8, 4096, 65536, kLong};
  Exchange exchange(options, side, channel, FI_TAGGED | FI_RMA);
  for (const size_t size : options.sizes) exchange.compared(trial.kind, size, kRounds);
  json["speed"] = exchange.speed(trial.kind, kLong, kTimedRounds);
  exchange.barrier();
  const PathBytes bytes = bytes_of_both(channel, exchange.drive());
  json["ways"] = bytes.ways();
  json["by_nic"] = bytes.nic() > 0;
  json["copied"] = bytes.nic_copied;
  exchange.barrier();
  return json;
}

/// As the client. A trouble ends the process of the trial; `met` tells, however it ended, whether
/// the other side was there.
Json visit(const pair::Options& options, const Trial& trial, const Paper& met) {
  pair::before_end([](pair::Status, const char* text) { end_trial({{"error", text}}); });
  Json json;
  run_sides(task_of(trial), options, [&](Side side, Channel& channel) {
    met.write("met");
    json = try_with_peer(options, trial, side, channel);
    return int(pair::kPassed);
  });
  return json;
}

void report_ways(Report& report, const Trial& trial, const Outcome& outcome) {
  const Json& result = outcome.result;
  const std::string ways = text_of(result, "ways");
  const std::string text = fmt::format("{} arrive both ways{}, {}", trial.what, speed_text(outcome),
                                       ways.empty() ? "which way is not known" : "by " + ways);
  if (result["same"] == true && result["by_nic"] == true)
    report.slower("W205", text + ": the other side is a process of this host",
                  with_said({"unset FI_ERDMA_SHM, and see the line of erdma"}, outcome));
  else if (number_of(result, "copied", 0) >= kLong)
    report.slower(
        "W203", text + ", but long ones are copied",
        with_said({"a lower layer must permit zero copy: see the line of erdma"}, outcome));
  else
    report.ok(text);
}

/// Whether the other side was met.
bool check_trial(Report& report, const pair::Options& options, const Trial& trial) {
  const int longest = int(std::ceil(options.limit_s * 4)) + 60;
  const Paper told;
  const Outcome outcome = try_apart(
      telling({{"FI_PROVIDER", "erdma"}}), [&] { return visit(options, trial, told); }, longest);
  const std::string trouble = trouble_of(outcome);
  if (trouble.empty()) {
    report_ways(report, trial, outcome);
    return true;
  }
  const bool met = !told.read().empty();
  if (met)
    report.broken(trial.code, fmt::format("{} fail: {}", trial.what, trouble), outcome.said);
  else
    report.broken("E208", fmt::format("no doctor of {} answers: {}", options.peer, trouble),
                  {"start there: fi_erdma doctor --serve"});
  return met;
}

}  // namespace

void check_peer(Report& report, const pair::Options& options) {
  report.begin("peer " + options.peer);
  for (const Trial& trial : kTrials)
    if (!check_trial(report, options, trial)) return;
}

int serve_peer(const pair::Options& asked) {
  pair::Options options = asked;
  int worst = pair::kPassed;
  for (const Trial& trial : kTrials) {
    const int status = pair::run_alone([&] {
      setenv("FI_PROVIDER", "erdma", 1);
      return run_sides(task_of(trial), options, [&](Side side, Channel& channel) {
        (void)try_with_peer(options, trial, side, channel);
        return int(pair::kPassed);
      });
    });
    fmt::print("  {:<5} {}\n",
               status == pair::kPassed     ? "ok"
               : status == pair::kNotTried ? "-"
                                           : "NO",
               trial.what);
    std::fflush(stdout);
    worst = std::max(worst, status);
    if (status == pair::kNotTried) break;
    options.announce = false;
  }
  return worst;
}

}  // namespace fi_erdma
