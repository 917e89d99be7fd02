#include "fi_erdma/prometheus.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "fi_erdma/costs.h"
#include "fi_erdma/gaps.h"
#include "fi_erdma/traffic.h"

namespace fi_erdma {
namespace {

constexpr double kStalledSeconds = 1;  ///< how long one operation must have been the oldest

/// Escapes a label value as the format requires. Of a text that is longer than any of the
/// provider's takes the beginning: the labels of the process are in each row of all its endpoints.
std::string quoted(const std::string& text) {
  constexpr size_t kLongest = 128;
  std::string result;
  for (const char c : std::string_view(text).substr(0, kLongest)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return '"' + result + '"';
}

std::string labels_of(const Process& process) {
  std::string labels = fmt::format("pid=\"{}\"", process.pid);
  const Block* const shown = process.shown();
  if (!shown) return labels;
  if (const auto rank = shown->number("rank")) labels += fmt::format(",rank=\"{}\"", *rank);
  for (const char* const name : {"job", "command"})
    if (const std::string text = shown->text(name); !text.empty())
      labels += fmt::format(",{}={}", name, quoted(text));
  return labels;
}

std::string labels_of(const Process& process, const Block& endpoint) {
  return fmt::format("{},endpoint={},device={}", labels_of(process),
                     quoted(endpoint.text("address")), quoted(endpoint.text("device")));
}

std::string head(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

/// Calls `row` with each process that has a page.
void for_each_page(const Look& look, const std::function<void(const Process&)>& row) {
  for (const Process& process : look.processes)
    if (process.page.snapshot) row(process);
}

/// Calls `row` with each process all of whose blocks were read. A sum that lacks a block would
/// fall, which Prometheus takes for a counter that began anew.
void for_each_whole_page(const Look& look, const std::function<void(const Process&)>& row) {
  for_each_page(look, [&](const Process& process) {
    if (!process.page.snapshot->unsettled()) row(process);
  });
}

std::string bytes_by_path(const Look& look) {
  std::string text =
      head("erdma_bytes_total", "counter", "Payload that processes moved, by path and direction.");
  for_each_whole_page(look, [&](const Process& process) {
    const std::string labels = labels_of(process);
    const auto row = [&](const Path& path, const char* direction, std::optional<uint64_t> value) {
      if (value)
        text += fmt::format("erdma_bytes_total{{{},path=\"{}\",direction=\"{}\"}} {}\n", labels,
                            path.name, direction, *value);
    };
    for (const Path& path : paths()) {
      if (path.part) continue;
      const Bytes bytes = bytes_of(*process.page.snapshot, path);
      row(path, "out", bytes.sent);
      row(path, "in", bytes.received);
    }
  });
  return text;
}

/// Bytes that are part of other paths get a metric of their own. As one more path, they would count
/// twice in a sum.
std::string counter_text(const Look& look, const Path& counter) {
  const std::string name = fmt::format("erdma_{}_total", counter.sent);
  std::string text = head(name, "counter", counter.part);
  for_each_whole_page(look, [&](const Process& process) {
    if (const auto number = bytes_of(*process.page.snapshot, counter).sent)
      text += fmt::format("{}{{{}}} {}\n", name, labels_of(process), *number);
  });
  return text;
}

/// Counters that are not bytes of a path.
constexpr Path kEvents[] = {
    {"", "shm_cma_refusals", "",
     "CMA calls that the kernel refused, counted once for each call and peer."},
    {"", "shm_connects", "", "Connections inside the host that were requested."},
    {"", "shm_waits", "", "Attempts to send a packet for which the ring had no room."},
    {"", "nic_connects", "", "Connections through a NIC that were requested."},
    {"", "nic_reclaimed", "",
     "Connections through a NIC that were closed to make room for others."},
    {"", "nic_waits", "",
     "Attempts to send a packet that found no credit of the peer, or no room or memory here."},
    {"", "gpu_flushes", "", "Messages that a NIC had to flush to a GPU."},
};

/// Bytes that processes copied, by the code of the reason.
std::string copies_by_reason(const Look& look) {
  constexpr std::pair<const char*, const char*> kCounters[] = {
      {"W401", "shm_refused_bytes"},        {"W203", "nic_refused_always_bytes"},
      {"W203", "nic_refused_memory_bytes"}, {"W402", "nic_refused_room_bytes"},
      {"W404", "nic_refused_short_bytes"},  {"W602", "gpu_staged_bytes"}};
  std::string text = head("erdma_copied_bytes_total", "counter",
                          "Payload that was copied, by the code of the reason, which is a heading "
                          "of docs/troubleshooting.md.");
  for_each_whole_page(look, [&](const Process& process) {
    const auto counted = counters_of(process);
    std::map<std::string, uint64_t> reasons;
    for (const auto& [code, name] : kCounters)
      if (const auto found = counted.find(name); found != counted.end())
        reasons[code] += found->second;
    // The process counts those of its closed endpoints itself.
    if (const auto closed = reasons.find("W401"); closed != reasons.end())
      for (const Block& peer : process.blocks("peer")) closed->second += refused_bytes(peer);
    for (const auto& [code, bytes] : reasons)
      text += fmt::format("erdma_copied_bytes_total{{{},reason=\"{}\"}} {}\n", labels_of(process),
                          code, bytes);
  });
  return text;
}

/// The operations that wait in one endpoint.
class Waiting {
 public:
  Waiting(const Block& endpoint, const std::vector<const Block*>& peers) {
    add("receive", endpoint, "any_receives");
    stand("message", endpoint, "any_receive_waited");
    for (const Block* const peer : peers) add_peer(*peer);
  }

  /// Unfinished operations by kind.
  const std::map<std::string, uint64_t>& pending() const { return x_pending; }
  struct Stalled {
    uint64_t peers = 0;
    double seconds = 0;  ///< how long the oldest operation has been seen
  };
  /// Peers by what their oldest operation waits for.
  const std::map<std::string, Stalled>& stalled() const { return x_stalled; }

 private:
  void add(const char* kind, const Block& block, const char* count) {
    x_pending[kind] += block.number(count).value_or(0);
  }
  /// Whether the operation has waited for kStalledSeconds.
  bool stand(const std::string& what, const Block& block, const char* waited) {
    const double seconds = double(block.number(waited).value_or(0)) / 1e9;
    if (seconds < kStalledSeconds) return false;
    Stalled& stalled = x_stalled[what];
    stalled.seconds = std::max(stalled.seconds, seconds);
    return true;
  }
  void stand_by_peer(const std::string& what, const Block& peer, const char* waited) {
    if (stand(what, peer, waited)) ++x_stalled[what].peers;
  }
  void add_peer(const Block& peer) {
    add("send", peer, "sends");
    add("receive", peer, "receives");
    add("unexpected", peer, "unexpected");
    add("matched", peer, "matched");
    stand_by_peer(known(peer.text("sends_for")), peer, "send_waited");
    stand_by_peer("message", peer, "receive_waited");
    stand_by_peer(known(peer.text("matched_for")), peer, "matched_waited");
  }
  /// Limits the words to the known ones, since a page may hold any number of them.
  static std::string known(const std::string& word) {
    constexpr std::string_view kWords[] = {"connection", "room",    "match",  "target", "bytes",
                                           "delivery",   "earlier", "sender", "flush"};
    return std::ranges::find(kWords, word) == std::end(kWords) ? "other" : word;
  }

  std::map<std::string, uint64_t> x_pending{
      {"send", 0}, {"receive", 0}, {"unexpected", 0}, {"matched", 0}};
  std::map<std::string, Stalled> x_stalled;
};

/// The answer of each endpoint to the last question.
struct WaitingTexts {
  std::string pending = head("erdma_operations_pending", "gauge",
                             "Unfinished operations by kind, of endpoints that answer.");
  std::string peers =
      head("erdma_stalled_peers", "gauge",
           "Peers with an operation that has waited for at least a second, by what it waits for.");
  std::string seconds =
      head("erdma_stalled_seconds", "gauge", "Least time that the oldest of these has waited.");
  std::string answered = head("erdma_answered_timestamp_seconds", "gauge",
                              "Time of the last answer of the endpoint, in a call of libfabric.");

  void add_answer(const std::string& labels, const Block& endpoint) {
    if (const auto at = endpoint.number("answered"); at.value_or(0))
      answered +=
          fmt::format("erdma_answered_timestamp_seconds{{{}}} {:.3f}\n", labels, double(*at) / 1e9);
  }
  void add_waits(const std::string& labels, const Waiting& waiting) {
    for (const auto& [kind, count] : waiting.pending())
      pending +=
          fmt::format("erdma_operations_pending{{{},kind=\"{}\"}} {}\n", labels, kind, count);
    for (const auto& [what, stalled] : waiting.stalled()) {
      peers += fmt::format("erdma_stalled_peers{{{},waits_for=\"{}\"}} {}\n", labels, what,
                           stalled.peers);
      seconds += fmt::format("erdma_stalled_seconds{{{},waits_for=\"{}\"}} {:.3f}\n", labels, what,
                             stalled.seconds);
    }
  }
};

std::string hidden_text(const Look& look) {
  std::string text = head("erdma_hidden_endpoints", "gauge",
                          "Open endpoints for which the statistics page has no room.");
  for_each_page(look, [&](const Process& process) {
    text += fmt::format("erdma_hidden_endpoints{{{}}} {}\n", labels_of(process),
                        hidden_endpoints(process));
  });
  return text;
}

std::string waiting_text(const AskedLook& asked) {
  std::string calls = head("erdma_calls_libfabric", "gauge",
                           "Whether the process called libfabric after it was asked: 1, or 0.");
  WaitingTexts texts;
  std::set<std::string> seen;
  for_each_page(asked.look, [&](const Process& process) {
    if (!asked.asked.contains(process.pid)) return;
    const bool answered = asked.answered.contains(process.pid);
    const bool called = answered || asked.changed.contains(process.pid);
    // An endpoint that is not shown cannot answer.
    if (called || !hidden_endpoints(process))
      calls += fmt::format("erdma_calls_libfabric{{{}}} {:d}\n", labels_of(process), called);
    PeersOf peers = peers_of(*process.page.snapshot);
    for (const Block& endpoint : process.blocks("endpoint")) {
      // An endpoint that is not enabled has no address yet. The collector of node_exporter refuses
      // a file in which two rows have the same labels.
      const std::string labels = labels_of(process, endpoint);
      if (endpoint.number("enabled").value_or(1) == 0 || !seen.insert(labels).second) continue;
      texts.add_answer(labels, endpoint);
      // What the endpoint showed before may be out of date.
      if (asked.endpoints.contains({process.pid, endpoint.index}))
        texts.add_waits(labels, {endpoint, peers[endpoint.index]});
    }
  });
  return calls + texts.answered + texts.pending + texts.peers + texts.seconds;
}

}  // namespace

std::string prometheus_text(const AskedLook& asked) {
  std::string text = bytes_by_path(asked.look);
  for (const Path& path : paths())
    if (path.part) text += counter_text(asked.look, path);
  for (const Path& event : kEvents) text += counter_text(asked.look, event);
  text += copies_by_reason(asked.look);
  return text + hidden_text(asked.look) + waiting_text(asked);
}

}  // namespace fi_erdma
