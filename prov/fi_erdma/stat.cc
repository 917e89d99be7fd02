#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/processes.h"

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

/// Peers of an endpoint by the way that leads to them: "3 shm, 4 nic".
std::string ways_of(const Snapshot& snapshot, uint32_t endpoint) {
  std::map<std::string, unsigned> ways;
  if (const BlockKind* const peers = snapshot.kind("peer"))
    for (const Block& peer : peers->blocks)
      if (peer.number("endpoint") == endpoint) ++ways[text_or_dash(peer.text("path"))];
  std::string text;
  for (const auto& [way, count] : ways)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, way);
  return text_or_dash(text);
}

constexpr char kRow[] = "{:>7} {:>5} {:1} {:<15} {:>7}  {:<21} {:<10} {}\n";

void print_counters(const BlockKind& kind, const Block& block) {
  for (const FieldInfo& field : kind.fields)
    if (field.meaning != layout::Meaning::fact)
      fmt::print("{:>30} {} {}\n", field.name, number_or_dash(&block, field.name), field.unit);
}

void print_details(const Snapshot& snapshot, const Block& endpoint) {
  for (const char* const name : {"other_hosts", "this_host", "gpu_memory", "changed"})
    fmt::print("{:>30} {}\n", name, text_or_dash(endpoint.text(name)));
  const BlockKind* const peers = snapshot.kind("peer");
  for (const Block& peer : peers ? peers->blocks : std::vector<Block>())
    if (peer.number("endpoint") == endpoint.index)
      fmt::print("{:>30} {} by {}\n", "peer", peer.text("address"), peer.text("path"));
}

void print(const Process& process, bool details) {
  if (!process.page.snapshot) {
    fmt::print(stderr, "fi_erdma: {}: {}\n", process.pid, process.page.fault);
    return;
  }
  const Snapshot& snapshot = *process.page.snapshot;
  const Block* const shown = snapshot.process();
  const std::string state(1, process.state ? process.state : '-');
  const std::string command = shown ? text_or_dash(shown->text("command")) : "-";
  const BlockKind* const endpoints = snapshot.kind("endpoint");
  const auto row = [&](const std::string& address, const std::string& device,
                       const std::string& ways) {
    fmt::print(kRow, process.pid, number_or_dash(shown, "rank"), state, command, age_of(shown),
               address, device, ways);
  };
  if (!endpoints || endpoints->blocks.empty()) row("-", "-", "-");
  for (const Block& endpoint : endpoints ? endpoints->blocks : std::vector<Block>()) {
    const bool enabled = endpoint.number("enabled").value_or(1) != 0;
    row(enabled ? text_or_dash(endpoint.text("address")) : "not enabled",
        text_or_dash(endpoint.text("device")), ways_of(snapshot, endpoint.index));
    print_counters(*endpoints, endpoint);
    if (details) print_details(snapshot, endpoint);
  }
}

}  // namespace

int run_stat(const Request& request) {
  const auto found = request.pids.empty() ? processes() : processes(request.pids);
  int status = 0;
  for (const Process& process : found)
    if (!request.pids.empty() && !process.page.snapshot) status = 1;
  if (request.json) {
    Json json = document("stat");
    json["processes"] = Json::array();
    for (const Process& process : found) json["processes"].push_back(to_json(process));
    print(json);
    return status;
  }
  if (found.empty()) fmt::print(stderr, "fi_erdma: no process of this user shows statistics\n");
  bool any = false;
  for (const Process& process : found) any = any || process.page.snapshot;
  if (any) fmt::print(kRow, "PID", "RANK", "S", "COMMAND", "UP", "ADDRESS", "DEVICE", "PEERS");
  for (const Process& process : found) print(process, request.details);
  return status;
}

}  // namespace fi_erdma
