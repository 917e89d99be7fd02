#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "fi_erdma/asked.h"
#include "fi_erdma/commands.h"
#include "fi_erdma/gaps.h"
#include "fi_erdma/json.h"
#include "fi_erdma/rates.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

constexpr double kInterval = 1;  ///< seconds between two looks
constexpr size_t kShown = 8;     ///< operations of a process, without -v
constexpr size_t kMostProcesses = 100'000;

/// Two looks at the processes, and which of them answered the question before the second.
class TwoLooks {
 public:
  explicit TwoLooks(const Request& request)
      : x_interval(request.interval > 0 ? request.interval : kInterval),
        x_before(ask(request.pids)),
        x_now(ask(request.pids)),
        x_rates(&x_before, x_now) {}

  const Look& now() const { return x_now; }
  const Rates& rates() const { return x_rates; }
  /// Empty if the process could not be asked.
  std::optional<bool> calls(const Process& process) const {
    if (!x_asked.contains(process.pid)) return std::nullopt;
    return x_calls.contains(process.pid);
  }
  /// Whether the process answered the last question.
  bool fresh(const Process& process) const { return x_fresh.contains(process.pid); }
  /// Whether the endpoint answered the last question.
  bool fresh(const Process& process, uint64_t endpoint) const {
    return x_fresh_endpoints.contains({process.pid, endpoint});
  }
  /// Whether the endpoint answered a question. Empty if there is none that the process answered at
  /// both looks, and others of its endpoints may be as late.
  std::optional<bool> calls(const Process& process, const Block& endpoint) const {
    if (fresh(process, endpoint.index)) return true;
    const bool stood = x_rates.before(process, "endpoint", endpoint);  // else it is a younger one
    if (stood && x_first_endpoints.contains({process.pid, endpoint.index})) return true;
    const bool at_both = fresh(process) && x_first.contains(process.pid) && stood;
    return at_both ? std::optional(false) : std::nullopt;
  }
  /// Whether the endpoint answered both questions: then it is known what waits in it.
  bool known(const Process& process, const Block& endpoint) const {
    const Endpoints::value_type key{process.pid, endpoint.index};
    return x_first_endpoints.contains(key) && x_fresh_endpoints.contains(key) &&
           x_rates.before(process, "endpoint", endpoint);
  }
  /// Whether the process did not answer the last question, but opened or closed an endpoint since.
  bool changed(const Process& process) const { return x_changed.contains(process.pid); }

 private:
  /// Looks when all endpoints have answered, at the latest at the end of the interval. Returns at
  /// the end of the interval.
  Look ask(const std::vector<pid_t>& pids) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(x_interval);
    AskedLook asked = look_and_ask(pids, x_interval);
    x_asked.merge(asked.asked);
    x_calls.insert(asked.answered.begin(), asked.answered.end());
    x_calls.insert(asked.changed.begin(), asked.changed.end());
    x_first = std::move(x_fresh);
    x_fresh = std::move(asked.answered);
    x_first_endpoints = std::move(x_fresh_endpoints);
    x_fresh_endpoints = std::move(asked.endpoints);
    x_changed = std::move(asked.changed);
    std::this_thread::sleep_until(end);
    return std::move(asked.look);
  }

  const double x_interval;
  std::set<pid_t> x_asked, x_calls;
  std::set<pid_t> x_first;  ///< processes that answered the first question
  std::set<pid_t> x_fresh;  ///< processes that answered the last question
  /// Endpoints that answered the first question, and the last one.
  Endpoints x_first_endpoints, x_fresh_endpoints;
  std::set<pid_t> x_changed;  ///< processes that opened or closed an endpoint since, without answer
  Look x_before, x_now;
  Rates x_rates;
};

/// The state of a process, judged by the kernel, its counters and its answers.
struct Verdict {
  const char* word;  ///< the state in the JSON document
  std::string text;
};

struct Standing {
  bool sends = false, receives = false, matched = false, any_receives = false;
};

/// Whether the same operation of a block is the oldest at both looks. The fields of an endpoint
/// that did not answer the last question may be out of date.
Standing standing_of(const Process& process, const char* kind, const Block& block,
                     const TwoLooks& looks) {
  const Block* const before = looks.rates().before(process, kind, block);
  const uint64_t endpoint = block.number("endpoint").value_or(block.index);
  if (!before || !looks.fresh(process, endpoint)) return {};
  const auto stands = [&](const char* id) {
    const uint64_t now = block.number(id).value_or(0);
    return now != 0 && before->number(id).value_or(0) == now;
  };
  return {stands("send_id"), stands("receive_id"), stands("matched_id"), stands("any_receive_id")};
}

std::string text_of_lack(std::string_view word) {
  return word == "flushes"      ? "waits for its NIC to flush"
         : word == "lacks_room" ? "polls, and lacks room at its peer"
                                : "polls, and lacks a connection";
}

/// The state of a process that answers.
Verdict verdict_by_answer(const Process& process, const TwoLooks& looks) {
  bool waits = false;
  const auto lacks = [&](const Block& peer, const Standing& standing) -> const char* {
    const std::string what = standing.sends ? peer.text("sends_for") : "";
    waits |= standing.sends || standing.receives || standing.matched;
    if (standing.matched && peer.text("matched_for") == "flush") return "flushes";
    return what == "connection" ? "lacks_connection" : what == "room" ? "lacks_room" : nullptr;
  };
  for (const Block& peer : process.blocks("peer"))
    if (const char* const word = lacks(peer, standing_of(process, "peer", peer, looks)))
      return {word, text_of_lack(word)};
  for (const Block& endpoint : process.blocks("endpoint"))
    waits |= standing_of(process, "endpoint", endpoint, looks).any_receives;
  if (waits) return {"unmatched", "polls, and nothing matches what it waits for"};
  if (hidden_endpoints(process))
    return {"unknown", "calls libfabric, and waits for nothing in the endpoints that are shown"};
  const auto known = [&](const Block& endpoint) { return looks.known(process, endpoint); };
  if (!std::ranges::all_of(process.blocks("endpoint"), known))
    return {"unknown",
            "calls libfabric, and waits for nothing in the endpoints that answered both times"};
  return {"idle", "calls libfabric, and waits for nothing in it"};
}

/// The state of a process that cannot be asked because its provider has another version.
Verdict verdict_by_load(const Process& process, const Rates& rates) {
  const double percent = 100 * rates.load(process);
  // A process that is runnable but gets no processor is not asleep.
  if (percent >= 10 || process.state == 'R')
    return {"runs", fmt::format("MOVES NO BYTES, and uses {:.0f} % of a processor: it computes, or "
                                "polls for what does not come",
                                percent)};
  return {"waits", "MOVES NO BYTES, and sleeps"};
}

/// The state of a process that the kernel has not stopped.
Verdict verdict_on_running(const Process& process, const TwoLooks& looks) {
  const Rates::Pair rate = looks.rates().of(process);
  if (looks.rates().is_new(process)) return {"unknown", "began, or opened its page, just now"};
  if (rate.sent.value_or(0) > 0 || rate.received.value_or(0) > 0)
    return {"moves", fmt::format("moves bytes: {} out, {} in", rate_text(rate.sent),
                                 rate_text(rate.received))};
  const auto calls = looks.calls(process);
  if (!calls && !rate.sent) return {"unknown", "was changing its page: its bytes are not known"};
  if (!calls) return verdict_by_load(process, looks.rates());
  if (looks.fresh(process)) return verdict_by_answer(process, looks);
  if (looks.changed(process)) return {"unknown", "opened or closed an endpoint just now"};
  if (hidden_endpoints(process))
    return {"unknown", "does not answer; it may use endpoints that are not shown"};
  const double percent = 100 * looks.rates().load(process);
  const char* const since = *calls ? " any more" : "";
  return {"silent", percent >= 10 || process.state == 'R'
                        ? fmt::format("DOES NOT CALL libfabric{}: it uses {:.0f} % of a processor "
                                      "for something else",
                                      since, percent)
                        : fmt::format("DOES NOT CALL libfabric{}: it sleeps", since)};
}

Verdict verdict_on(const Process& process, const TwoLooks& looks) {
  switch (process.state) {
    case 'T':
      return {"stopped", "IS STOPPED by a signal (kill -CONT lets it go on)"};
    case 't':
      return {"traced", "IS STOPPED by a debugger"};
    case 'Z':
    case 'X':
      return {"ended", "HAS ENDED, and its parent did not ask for its status"};
    default:
      return verdict_on_running(process, looks);
  }
}

void add_standing(Json& json, const Process& process, const TwoLooks& looks) {
  const std::span<const Block> peers = process.blocks("peer");
  for (size_t i = 0; i < peers.size(); ++i) {
    const Standing standing = standing_of(process, "peer", peers[i], looks);
    json["peers"][i]["stands"] = {
        {"sends", standing.sends}, {"receives", standing.receives}, {"matched", standing.matched}};
  }
  const std::span<const Block> endpoints = process.blocks("endpoint");
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const Standing standing = standing_of(process, "endpoint", endpoints[i], looks);
    json["endpoints"][i]["stands"] = {{"any_receives", standing.any_receives}};
    if (const auto calls = looks.calls(process, endpoints[i]))
      json["endpoints"][i]["calls"] = *calls;
  }
}

Json to_json(const Process& process, const TwoLooks& looks, bool tags) {
  Json json = to_json(process, tags);
  const Verdict verdict = verdict_on(process, looks);
  json["verdict"] = verdict.word;
  json["says"] = verdict.text;
  json["host"] = host_name();
  const auto calls = looks.calls(process);
  json["calls"] = calls ? Json(*calls) : Json();
  add_standing(json, process, looks);
  return json;
}

// --- what people read
// -----------------------------------------------------------------------------

bool works(const Json& process) {
  const std::string word = text_of(process, "verdict");
  return word != "stopped" && word != "traced" && word != "ended";
}

std::string place_of(const Json& process) {
  return fmt::format("{} pid {}", text_of(process, "host"), number_of(process, "pid", 0));
}

void print_head(const WaitGraph& graph) {
  size_t waiting = 0;
  for (size_t i = 0; i < graph.size(); ++i) waiting += graph.waits(i);
  if (!waiting) return;
  fmt::print("{} of {} processes {}", waiting, graph.size(), waiting == 1 ? "waits" : "wait");
  const std::vector<size_t> circle = graph.circle(), ends = graph.ends();
  if (!circle.empty()) {
    fmt::print("; these wait for each other:");
    for (const size_t i : circle) fmt::print(" {} ->", graph.name_of(i));
    fmt::print(" {}", graph.name_of(circle.front()));
  } else if (ends.size() == 1 && ends.front() != kNobody) {
    fmt::print("; all wait in the end for {} ({})", graph.name_of(ends.front()),
               place_of(graph.process(ends.front())));
  } else if (ends.size() == 1) {
    fmt::print("; all wait in the end for {} not seen here",
               graph.unseen() == 1 ? "a process that is" : "processes that are");
  }
  fmt::print(".\n");
}

void print_queues(const Json& process) {
  const auto peers = process.find("peers");
  if (peers == process.end() || !peers->is_array()) return;
  for (const Json& peer : *peers)
    if (peer.is_object()) {
      const auto word = [&](const char* name) {
        const std::string text = text_of(peer, name);
        return text.empty() ? std::string("-") : text;
      };
      fmt::print("          {} by {}, {}: {} sends, {} receives, {} unexpected, {} matched{}\n",
                 text_of(peer, "address"), word("path"), word("link"), gauge_of(peer, "sends"),
                 gauge_of(peer, "receives"), gauge_of(peer, "unexpected"),
                 gauge_of(peer, "matched"),
                 gauge_of(peer, "throttled") ? ", it keeps no more unexpected messages" : "");
    }
}

void print_process(const WaitGraph& graph, size_t i, bool details) {
  const Json& process = graph.process(i);
  fmt::print("  {}  {}  {}\n", graph.name_of(i), place_of(process), text_of(process, "says"));
  const std::span<const Wait> waits = graph.waits_of(i);
  const size_t shown = details ? waits.size() : std::min(waits.size(), kShown);
  for (const Wait& wait : waits.first(shown)) fmt::print("        {}\n", wait.why);
  if (shown < waits.size()) fmt::print("        and {} more\n", waits.size() - shown);
  const auto endpoints = process.find("endpoints");
  if (endpoints != process.end() && endpoints->is_array())
    for (const Json& endpoint : *endpoints)
      if (const uint64_t any = gauge_of(endpoint, "any_receives"))
        fmt::print("        {} {} from any process\n", any, any == 1 ? "receive" : "receives");
  if (details) print_queues(process);
}

/// The exit status of the program.
int status_of(const Request& request, const WaitGraph& graph) {
  // An unreadable page may belong to another program, unless the user named its process.
  const bool missing = !request.pids.empty();
  int status = graph.circle().empty() ? 0 : 2;
  for (size_t i = 0; i < graph.size(); ++i) {
    const Json& process = graph.process(i);
    status = std::max(status, !works(process) ? 2 : missing && process.contains("fault") ? 1 : 0);
  }
  return status;
}

/// `refused`: number of programs that were not looked at.
int print(const Request& request, std::vector<Json> processes, uint64_t refused) {
  const WaitGraph graph(std::move(processes));
  print_head(graph);
  for (size_t i = 0; i < graph.size(); ++i) {
    const Json& process = graph.process(i);
    if (process.contains("fault") && works(process))
      fmt::print(stderr, "fi_erdma: {}: {}\n", process["pid"].dump(), text_of(process, "fault"));
    else
      print_process(graph, i, request.details);
    print_gaps(gaps_of(process, place_of(process)));
  }
  print_gaps(gaps_of_refused(refused));
  if (graph.size() == 0) fmt::print(stderr, "fi_erdma: no process of this user shows statistics\n");
  return status_of(request, graph);
}

/// Identifies a process among those of all hosts. Containers may share a host name and use the same
/// PIDs. Empty if the document is not about a process.
std::optional<std::string> key_of(const Json& process) {
  if (!process.is_object()) return std::nullopt;
  const auto pid = process.find("pid"), shown = process.find("process");
  if (pid == process.end() || !pid->is_number_integer()) return std::nullopt;
  const uint64_t started = shown == process.end() ? 0 : number_of(*shown, "started", 0);
  return fmt::format("{} {} {}", text_of(process, "host"), pid->dump(), started);
}

/// Reads documents of `hang --json`, of several hosts or several of one host. Adds up how many
/// programs were not looked at.
std::vector<Json> read_documents(uint64_t& refused) {
  std::vector<Json> all;
  std::set<std::string> seen;
  for_each_document(std::cin, "hang", "processes", [&](Json& document) {
    refused += number_of(document, "refused", 0);
    for (Json& process : document["processes"]) {
      const auto key = key_of(process);
      if (!key || !seen.insert(*key).second) continue;
      all.push_back(std::move(process));
      if (all.size() > kMostProcesses) throw std::runtime_error("there are too many processes");
    }
  });
  return all;
}

}  // namespace

int run_hang(const Request& request) {
  if (request.input) {
    uint64_t refused = 0;
    std::vector<Json> processes = read_documents(refused);
    return print(request, std::move(processes), refused);
  }
  const TwoLooks looks(request);
  std::vector<Json> processes;
  for (const Process& process : looks.now().processes)
    processes.push_back(to_json(process, looks, request.details));
  const unsigned refused = looks.now().refused;
  if (!request.json) return print(request, std::move(processes), refused);
  Json json = document("hang");
  json["refused"] = refused;
  json["processes"] = processes;
  print(json);
  return status_of(request, WaitGraph(std::move(processes)));
}

}  // namespace fi_erdma
