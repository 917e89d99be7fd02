#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "fi_erdma/doctor.h"
#include "fi_erdma/interfaces.h"
#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/pair/meeting.h"
#include "fi_erdma/pair/path_bytes.h"
#include "fi_erdma/paper.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

using pair::Channel;
using pair::Exchange;
using pair::PathBytes;
using pair::Side;

/// Each trial runs in a process of its own on both sides, so that a failed trial does not end the
/// others.
struct Trial {
  const char* what;
  Exchange::Kind kind;
  const char* code;
};
constexpr Trial kTrials[] = {{"messages", Exchange::Kind::message, "E209"},
                             {"RMA writes", Exchange::Kind::write, "E210"},
                             {"RMA reads", Exchange::Kind::read, "E211"}};

/// The data that each side sends to the other about itself: the kernel, which any containers share,
/// and the network namespace, through which processes find each other's shared memory.
Json place_of(const pair::Endpoint& endpoint) {
  Json json = {{"kernel", first_line("/proc/sys/kernel/random/boot_id")},
               {"network", namespace_of("self", "net")},
               {"device", endpoint.info().domain_attr->name}};
  if (const auto interface = interface_of(endpoint.name()))
    json["interface"] = interface->name, json["mtu"] = interface->mtu;
  return json;
}

/// The name of the task, which both sides compare: they must run the same trial.
std::string task_of(const Trial& trial) {
  return std::string("doctor: ") + trial.what;
}

/// Runs one side of a trial; `json` receives the results as they come.
void try_with_peer(pair::Options options, const Trial& trial, Side side, Channel& channel,
                   Json& json) {
  // The waits of a trial must end before the other side gives up waiting for the next trial.
  options.limit_s /= 3;
  options.sizes = {8, 4096, 65536, kLongBytes};
  Exchange exchange(options, side, channel, FI_TAGGED | FI_RMA);
  json["here"] = place_of(exchange.endpoint());
  json["there"] = object_in(channel.swap(json["here"].dump(), exchange.drive()));
  for (const size_t size : options.sizes) exchange.compared(trial.kind, size, kTrialRounds);
  json["speed"] = exchange.speed(trial.kind, kLongBytes, kTimedRounds);
  exchange.barrier();
  const PathBytes bytes = bytes_of_both(channel, exchange.drive());
  json["ways"] = bytes.ways();
  json["by_nic"] = bytes.nic() > 0;
  json["copied"] = bytes.nic_copied;
  exchange.barrier();
}

/// How far a failed trial had come in meeting the other side.
const char* word_of(pair::Meeting meeting) {
  return meeting == pair::Meeting::silent                                            ? "silent"
         : meeting == pair::Meeting::stranger || meeting == pair::Meeting::different ? "other"
                                                                                     : "nobody";
}

/// Runs a trial as the client. A failure ends the process of the trial. `met` tells in any case
/// whether the other side was met.
Json visit(const pair::Options& options, const Trial& trial, const Paper& met) {
  static Json json = Json::object();
  pair::before_end([](pair::Status, const char* text) {
    json["error"] = text;
    json["meeting"] = word_of(pair::meeting());
    end_trial(json);
  });
  run_sides(task_of(trial), options, [&](Side side, Channel& channel) {
    met.write("met");
    try_with_peer(options, trial, side, channel, json);
    return int(pair::kPassed);
  });
  return json;
}

/// The NICs that sent and received the bytes of a trial.
struct Places {
  explicit Places(const Json& result)
      : here(result.value("here", Json::object())), there(result.value("there", Json::object())) {}
  bool by_nic() const {
    return text_of(here, "device") != "shm" && text_of(there, "device") != "shm";
  }
  bool one_kernel() const { return text_of(here, "kernel") == text_of(there, "kernel"); }
  bool one_network() const {
    return number_of(here, "network", 0) == number_of(there, "network", 1);
  }
  /// Also works if one of them is unknown.
  bool one_mtu() const {
    const uint64_t own = number_of(here, "mtu", 0), other = number_of(there, "mtu", 0);
    return own == other || !own || !other;
  }
  std::string text() const {
    return fmt::format("{} here, {} there", place_text(text_of(here, "device"), here),
                       place_text(text_of(there, "device"), there));
  }
  const Json here, there;
};

void report_places(Report& report, const Outcome& outcome) {
  const Places places(outcome.result);
  if (!places.by_nic()) return;
  if (places.one_mtu())
    report.ok(places.text());
  else
    report.slower("W215", "the MTU differs: " + places.text(),
                  {"set both to the larger one, if the network between them permits it"});
}

void report_ways(Report& report, const Trial& trial, const Outcome& outcome) {
  const Json& result = outcome.result;
  const Places places(result);
  const std::string ways = text_of(result, "ways");
  const std::string text = fmt::format("{} arrive both ways{}, {}", trial.what, speed_text(outcome),
                                       ways.empty() ? "which way is not known" : "by " + ways);
  if (places.one_kernel() && result["by_nic"] == true)
    report.slower(
        "W205", text + ": the other side is a process of this host",
        with_said({places.one_network() ? "unset FI_ERDMA_SHM, and see the line of erdma"
                                        : "only one network namespace of a host has shared memory "
                                          "(hostNetwork: true)"},
                  outcome));
  else if (number_of(result, "copied", 0) >= kLongBytes)
    report.slower(
        "W203", text + ", but long ones are copied",
        with_said({"a lower layer must permit zero copy: see the line of erdma"}, outcome));
  else
    report.ok(text);
}

/// `met_before`: an earlier trial met the other side.
void report_unmet(Report& report, const pair::Options& options, const Outcome& outcome,
                  bool met_before) {
  const std::string trouble = trouble_of(outcome);
  if (met_before)
    return report.broken(
        "E212", fmt::format("{} does not answer any more: {}", options.peer, trouble),
        {"the doctor there, or its host, has stopped or ended: look at its output"});
  const std::string how = outcome.result.is_object() ? text_of(outcome.result, "meeting") : "";
  const std::string start = "start there: fi_erdma doctor --serve";
  if (how == "silent")
    report.broken(
        "E212", fmt::format("{} does not answer in time: {}", options.peer, trouble),
        {"the host is down or busy, or a firewall drops TCP port " + options.port, start});
  else if (how == "other")
    report.broken("E213", fmt::format("another program answers on {}: {}", options.peer, trouble),
                  {"another program has TCP port " + options.port +
                       ", or the fi_erdma there is of another version, or serves something else",
                   start});
  else
    report.broken("E208",
                  fmt::format("cannot connect to a doctor on {}: {}", options.peer, trouble),
                  {start});
}

/// Whether the other side was met.
bool check_trial(Report& report, const pair::Options& options, const Trial& trial,
                 bool met_before) {
  const int longest = int(std::ceil(options.limit_s * 4)) + 60;
  const Paper told;
  const Outcome outcome = try_apart(
      telling({{"FI_PROVIDER", "erdma"}}), [&] { return visit(options, trial, told); }, longest);
  const bool met = !told.read().empty();
  const bool placed = outcome.result.is_object() && outcome.result.contains("there");
  if (placed && trial.kind == Exchange::Kind::message) report_places(report, outcome);
  const std::string trouble = trouble_of(outcome);
  if (trouble.empty())
    report_ways(report, trial, outcome);
  else if (met)
    report.broken(trial.code, fmt::format("{} fail: {}", trial.what, trouble), outcome.said);
  else
    report_unmet(report, options, outcome, met_before);
  return met;
}

}  // namespace

void check_peer(Report& report, const pair::Options& options) {
  report.begin("peer " + options.peer);
  bool met = false;
  for (const Trial& trial : kTrials)
    if (!(met = check_trial(report, options, trial, met))) return;
}

int serve_peer(const pair::Options& asked) {
  pair::Options options = asked;
  int worst = pair::kPassed;
  for (const Trial& trial : kTrials) {
    const Paper met;
    const int status = pair::run_alone([&] {
      setenv("FI_PROVIDER", "erdma", 1);
      return run_sides(task_of(trial), options, [&](Side side, Channel& channel) {
        met.write("met");
        Json found;
        try_with_peer(options, trial, side, channel, found);
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
    // A client that connects later would meet another trial.
    if (met.read().empty()) break;
    options.announce = false;
  }
  return worst;
}

}  // namespace fi_erdma
