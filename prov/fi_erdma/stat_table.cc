#include "fi_erdma/stat_table.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "fi_erdma/costs.h"

namespace fi_erdma {
namespace {

std::string text_or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}
std::string number_or_dash(const Block* block, std::string_view name) {
  const auto number = block ? block->number(name) : std::nullopt;
  return number ? std::to_string(*number) : "-";
}

/// "45 s", "12 min", "3.5 h", "2.1 d".
std::string age_of(const Block* process) {
  const auto started = process ? process->number("started") : std::nullopt;
  const auto now = uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                std::chrono::system_clock::now().time_since_epoch())
                                .count());
  if (!started || *started > now) return "-";
  const double seconds = double(now - *started) / 1e9;
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 172800) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} d", seconds / 86400);
}

/// The number of peers of an endpoint by transport: "3 shm, 4 nic".
std::string ways_of(const std::vector<const Block*>& peers) {
  std::map<std::string, unsigned> ways;
  for (const Block* const peer : peers) ++ways[text_or_dash(peer->text("path"))];
  std::string text;
  for (const auto& [way, count] : ways)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, way);
  return text_or_dash(text);
}

constexpr char kRow[] = "{:>7} {:>5} {:1} {:<15} {:>7}  {:<21} {:<10} {}\n";
constexpr char kPathRow[] = "{:>30}  {:>14} {:>14} {:>14} {:>14}\n";
constexpr char kPathHistory[] = "{:>30}  {:>14} {:>14} {:>14} {:>14}  {}\n";
constexpr char kPeerRow[] = "{:>7} {:>5}  {:<21} {:>5}  {:<4} {:<10} {:>14} {:>14} {:>14} {:>14}\n";
constexpr char kRankRow[] = "{:>7} {:>5} {:1} {:<15} {:>14} {:>14} {:>14} {:>14}\n";

void print_details(const Snapshot& snapshot, const Block& endpoint,
                   const std::vector<const Block*>& peers) {
  for (const char* const name : {"other_hosts", "this_host", "gpu_memory", "changed"})
    fmt::print("{:>30}  {}\n", name, text_or_dash(endpoint.text(name)));
  for (const FieldInfo& field : snapshot.kind("endpoint")->fields)
    if (field.meaning == layout::Meaning::counter)
      fmt::print("{:>30}  {} {}\n", field.name, number_or_dash(&endpoint, field.name), field.unit);
  for (const Block* const peer : peers)
    fmt::print("{:>30}  {} by {}\n", "peer", peer->text("address"), peer->text("path"));
}

std::string state_text(const Process& process) {
  return std::string(1, process.state ? process.state : '-');
}
std::string command_of(const Block* process) {
  return process ? text_or_dash(process->text("command")) : "-";
}

bool any_page(const Look& now) {
  for (const Process& process : now.processes)
    if (process.page.snapshot) return true;
  return false;
}

StatTable::Ranks ranks_of(const Look& now) {
  StatTable::Ranks ranks;
  for (const Process& process : now.processes)
    for (const Block& endpoint : process.blocks("endpoint"))
      ranks[endpoint.text("address")] = number_or_dash(process.shown(), "rank");
  return ranks;
}

void print_fault(const Process& process) {
  fmt::print(stderr, "fi_erdma: {}: {}\n", process.pid, process.page.fault);
}

}  // namespace

void StatTable::print_paths(const Process& process, const Block& endpoint,
                            const std::vector<const Block*>& peers, const Rates& rates) const {
  bool header = false;
  for (const Path& path : paths()) {
    const Bytes bytes = bytes_of(endpoint, path);
    if (!bytes.sent.value_or(0) && !bytes.received.value_or(0)) continue;
    if (!header) fmt::print(kPathRow, "PATH", "OUT/S", "IN/S", "OUT", "IN");
    header = true;
    const Rates::Pair now = rates.of(process, endpoint, path);
    const auto print = [&](const char* row, const auto&... more) {
      fmt::print(fmt::runtime(row), path.name, rate_text(now.sent), rate_text(now.received),
                 total_text(bytes.sent), total_text(bytes.received), more...);
    };
    if (!history || !now.sent) {
      print(kPathRow);
      continue;
    }
    const std::string row = fmt::format("{} {} {}", process.pid, endpoint.index, path.name);
    print(kPathHistory, history->add(row, *now.sent + now.received.value_or(0)));
  }
  for (const std::string& cost : costs_of(endpoint, peers))
    fmt::print("{:>30}  {}\n", "SLOWER", cost);
}

void StatTable::print_by_path(const Look& now, const Rates& rates) const {
  if (any_page(now))
    fmt::print(kRow, "PID", "RANK", "S", "COMMAND", "UP", "ADDRESS", "DEVICE", "PEERS");
  for (const Process& process : now.processes) {
    if (!process.page.snapshot) {
      print_fault(process);
      continue;
    }
    const Snapshot& snapshot = *process.page.snapshot;
    const Block* const shown = snapshot.process();
    const auto row = [&](const std::string& address, const std::string& at,
                         const std::string& ways) {
      fmt::print(kRow, process.pid, number_or_dash(shown, "rank"), state_text(process),
                 command_of(shown), age_of(shown), address, at, ways);
    };
    PeersOf peers = peers_of(snapshot);
    const std::span<const Block> endpoints = snapshot.blocks("endpoint");
    if (endpoints.empty()) row("-", "-", "-");
    for (const Block& endpoint : endpoints) {
      const bool enabled = endpoint.number("enabled").value_or(1) != 0;
      row(enabled ? text_or_dash(endpoint.text("address")) : "not enabled",
          text_or_dash(endpoint.text("device")), ways_of(peers[endpoint.index]));
      print_paths(process, endpoint, peers[endpoint.index], rates);
      if (details) print_details(snapshot, endpoint, peers[endpoint.index]);
    }
  }
  if (history) history->end_table();
}

void StatTable::print_by_rank(const Look& now, const Rates& rates) const {
  if (any_page(now))
    fmt::print(kRankRow, "PID", "RANK", "S", "COMMAND", "OUT/S", "IN/S", "OUT", "IN");
  for (const Process& process : now.processes) {
    if (!process.page.snapshot) {
      print_fault(process);
      continue;
    }
    const Block* const shown = process.shown();
    const Bytes bytes = all_bytes_of(*process.page.snapshot);
    const Rates::Pair rate = rates.of(process);
    fmt::print(kRankRow, process.pid, number_or_dash(shown, "rank"), state_text(process),
               command_of(shown), rate_text(rate.sent), rate_text(rate.received),
               total_text(bytes.sent), total_text(bytes.received));
  }
}

void StatTable::print_peers(const Process& process, const Ranks& ranks, const Rates& rates) const {
  for (const Block& peer : process.blocks("peer")) {
    const Bytes bytes = all_bytes_of(peer);
    const Rates::Pair rate = rates.of_peer(process, peer);
    const auto rank = ranks.find(peer.text("address"));
    const auto endpoint = peer.number("endpoint");
    const bool fresh = endpoint && answered.contains({process.pid, *endpoint});
    fmt::print(kPeerRow, process.pid, number_or_dash(process.shown(), "rank"),
               text_or_dash(peer.text("address")), rank == ranks.end() ? "-" : rank->second,
               text_or_dash(peer.text("path")), fresh ? text_or_dash(peer.text("link")) : "-",
               rate_text(rate.sent), rate_text(rate.received), total_text(bytes.sent),
               total_text(bytes.received));
  }
}

void StatTable::print_by_peer(const Look& now, const Rates& rates) const {
  if (any_page(now))
    fmt::print(kPeerRow, "PID", "RANK", "PEER", "RANK", "PATH", "LINK", "OUT/S", "IN/S", "OUT",
               "IN");
  const Ranks ranks = ranks_of(now);
  for (const Process& process : now.processes)
    if (process.page.snapshot)
      print_peers(process, ranks, rates);
    else
      print_fault(process);
}

}  // namespace fi_erdma
