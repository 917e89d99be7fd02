#include "fi_erdma/waits.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "fi_erdma/traffic.h"

namespace fi_erdma {
namespace {

const Json& member(const Json& object, const char* name) {
  static const Json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(name);
  return found == object.end() ? nothing : *found;
}
std::string job_of(const Json& process) {
  return text_of(member(process, "process"), "job");
}
bool stands(const Json& block, const char* name) {
  const Json& value = member(member(block, "stands"), name);
  return value.is_boolean() && value.get<bool>();
}

/// An address is valid on one host where the peer shares memory with the process.
bool is_on_host(const Json& peer) {
  const std::string path = text_of(peer, "path");
  return path == "shm" || path == "self";
}
std::string key_on_host(const Json& process, const std::string& address) {
  return text_of(process, "host") + "|" + address;
}

std::string counted(uint64_t count, const char* what, uint64_t bytes) {
  return fmt::format("{} {}{}{} {}", count, what, count == 1 ? " of " : "s, the oldest of ",
                     bytes_text(double(bytes)), "");
}

std::string tag_text(const Json& block, const char* name) {
  const Json& tag = member(member(block, "gauges"), name);
  return tag.is_number_unsigned() ? fmt::format("tag {:#x} ", tag.get<uint64_t>()) : std::string();
}

/// How long the oldest operation has been seen; empty if the provider does not tell.
std::string age_text(const Json& block, const char* name) {
  const double seconds = double(gauge_of(block, name)) / 1e9;
  if (seconds <= 0) return {};
  return ", for at least " + (seconds < 10     ? fmt::format("{:.1f} s", seconds)
                              : seconds < 120  ? fmt::format("{:.0f} s", seconds)
                              : seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60)
                                               : fmt::format("{:.1f} h", seconds / 3600));
}

/// How many sends there are to a peer, and what the oldest is. Of some RMA operations the provider
/// does not know the length, and shows 0.
std::string counted_sends(const Json& peer) {
  const uint64_t count = gauge_of(peer, "sends"), bytes = gauge_of(peer, "send_bytes");
  const std::string kind = text_of(peer, "send_kind");
  if (kind.empty() || kind == "message")
    return counted(count, "send", bytes) + tag_text(peer, "send_tag");
  const std::string length = bytes ? " of " + bytes_text(double(bytes)) : "";
  const bool atomic = kind == "atomic";
  const std::string name = atomic ? "atomic operation" : kind;
  if (count == 1) return fmt::format("1 {}{} ", name, length);
  return fmt::format("{} operations, the oldest {} {}{} ", count, atomic ? "an" : "a", name,
                     length);
}

/// Why the oldest send waits. `there`: the peer's block of this process; may be null.
std::string why_of_send(const Json& peer, const std::string& to, const Json* there) {
  const std::string word = text_of(peer, "sends_for");
  const std::string what = counted_sends(peer) + "to " + to + age_text(peer, "send_waited");
  if (word == "connection")
    return fmt::format("{}: there is no connection (it is {})", what, text_of(peer, "link"));
  if (word == "room")
    return fmt::format("{}: the connection has no room, {} keeps what came", what, to);
  if (word == "target") return what + ": it did not execute them";
  if (word == "delivery") return what + ": it has not confirmed the delivery";
  if (word == "bytes") return what + ": the bytes do not move";
  if (word == "earlier") return what + ": earlier ones must end first";
  if (word != "match") return what;
  const uint64_t unexpected = there ? gauge_of(*there, "unexpected") : 0;
  const std::string why =
      unexpected
          ? fmt::format("{}: {} has {} of these and no receive that matches", what, to, unexpected)
          : what + ": announced, and not asked for";
  return gauge_of(peer, "throttled") ? why + "; it keeps no more unexpected messages" : why;
}

std::string why_of_receive(const Json& peer, const std::string& from) {
  const std::string what =
      counted(gauge_of(peer, "receives"), "receive", gauge_of(peer, "receive_bytes")) +
      tag_text(peer, "receive_tag") + "from " + from + age_text(peer, "receive_waited");
  const uint64_t unexpected = gauge_of(peer, "unexpected");
  if (!unexpected) return what + ": nothing has come";
  return fmt::format(
      "{}: what has come does not match ({} {}{})", what, unexpected,
      unexpected == 1 ? "message" : "messages, the oldest has ",
      (unexpected == 1 && !tag_text(peer, "unexpected_tag").empty() ? " with " : "") +
          tag_text(peer, "unexpected_tag"));
}

std::string why_of_matched(const Json& peer, const std::string& from) {
  const std::string word = text_of(peer, "matched_for");
  const std::string what =
      counted(gauge_of(peer, "matched"), "message", gauge_of(peer, "matched_bytes")) +
      tag_text(peer, "matched_tag") + "from " + from + age_text(peer, "matched_waited");
  if (word == "flush") return what + ": the NIC does not flush what it wrote";
  if (word == "sender") return what + ": the sender does not move the bytes";
  return what + ": the bytes do not move";
}

}  // namespace

uint64_t number_of(const Json& object, const char* name, uint64_t otherwise) {
  const Json& value = member(object, name);
  const bool fits =
      value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
  return fits ? value.get<uint64_t>() : otherwise;
}

std::string text_of(const Json& object, const char* name) {
  return text_in(member(object, name));
}

std::string text_in(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : std::string();
  for (char& c : text)
    if (c < 0x20 || c > 0x7e) c = '?';
  return text;
}

uint64_t gauge_of(const Json& block, const char* name) {
  return number_of(member(block, "gauges"), name, 0);
}

WaitGraph::WaitGraph(std::vector<Json> processes) : x_processes(std::move(processes)) {
  std::erase_if(x_processes, [](const Json& one) { return !member(one, "pid").is_number(); });
  x_addresses.resize(size());
  for (size_t i = 0; i < size(); ++i) learn(i);
  for (const Json& one : x_processes) x_several_jobs |= job_of(one) != job_of(x_processes.front());
  x_peers.resize(size());
  for (size_t i = 0; i < size(); ++i) learn_peers(i);
  for (size_t i = 0; i < size(); ++i) {
    const Json& peers = member(x_processes[i], "peers");
    for (size_t at = 0; peers.is_array() && at < peers.size(); ++at) find_waits(i, peers[at]);
    if (waits_of(i).empty()) find_suspects(i);
  }
}

/// A process that waits for a message from any process waits for the processes of its job that send
/// nothing.
void WaitGraph::find_suspects(size_t i) {
  const Json& endpoints = member(x_processes[i], "endpoints");
  const auto waits_for_any = [](const Json& endpoint) { return stands(endpoint, "any_receives"); };
  if (!endpoints.is_array() || std::ranges::none_of(endpoints, waits_for_any)) return;
  constexpr size_t kMost = 16;  // forged documents may hold very many
  const auto& silent = x_silent[job_of(x_processes[i])];
  const size_t most = std::min(silent.size(), kMost);
  for (const auto& [other, what] : std::span(silent).first(most))
    if (other != i)
      x_waits.push_back({i, other, name_of(other),
                         fmt::format("a message of any process: {} {}", name_of(other), what)});
  if (most < silent.size())
    x_waits.push_back(
        {i, silent.back().first, name_of(silent.back().first),
         fmt::format("a message of any process: {} more are as silent", silent.size() - most)});
}

std::string WaitGraph::name_of(size_t i) const {
  const uint64_t rank = number_of(member(x_processes[i], "process"), "rank", UINT64_MAX);
  if (rank == UINT64_MAX) return fmt::format("pid {}", number_of(x_processes[i], "pid", 0));
  const std::string job = x_several_jobs ? job_of(x_processes[i]) : "";
  return fmt::format("rank {}{}{}", rank, job.empty() ? "" : " of job ", job);
}

/// Shared memory reaches processes of the same host only, whatever the name of the device.
size_t WaitGraph::find(const Json& process, const Json& peer) const {
  const std::string address = text_of(peer, "address");
  const auto here = x_here.find(key_on_host(process, address));
  if (here != x_here.end()) return here->second;
  const auto there = x_there.find(address);
  return is_on_host(peer) || there == x_there.end() ? kNobody : there->second;
}

void WaitGraph::learn(size_t i) {
  constexpr std::pair<std::string_view, const char*> kSilent[] = {
      {"silent", "does not call libfabric"},
      {"stopped", "is stopped"},
      {"traced", "is stopped"},
      {"ended", "has ended"}};
  for (const auto& [word, what] : kSilent)
    if (text_of(x_processes[i], "verdict") == word)
      x_silent[job_of(x_processes[i])].emplace_back(i, what);
  const Json& endpoints = member(x_processes[i], "endpoints");
  if (!endpoints.is_array()) return;
  for (const Json& endpoint : endpoints) {
    const std::string address = text_of(endpoint, "address");
    x_addresses[i].emplace(number_of(endpoint, "index", 0), address);
    x_here.emplace(key_on_host(x_processes[i], address), i);
    if (text_of(endpoint, "device") != "shm") x_there.emplace(address, i);
    if (member(endpoint, "calls") == false) x_unpolled.emplace(i, address);
  }
}

void WaitGraph::learn_peers(size_t i) {
  const Json& peers = member(x_processes[i], "peers");
  if (!peers.is_array()) return;
  for (const Json& peer : peers)
    x_peers[i].emplace(std::pair(owner_of(i, peer), text_of(peer, "address")), &peer);
}

std::string WaitGraph::owner_of(size_t i, const Json& peer) const {
  const auto found = x_addresses[i].find(number_of(peer, "endpoint", 0));
  return found == x_addresses[i].end() ? std::string() : found->second;
}

/// The block that the other process has of the same two endpoints. Its other endpoints may have
/// blocks of this process, too.
const Json* WaitGraph::same_pair(size_t i, const Json& peer, size_t other) const {
  if (other == kNobody) return nullptr;
  const auto found = x_peers[other].find({text_of(peer, "address"), owner_of(i, peer)});
  return found == x_peers[other].end() ? nullptr : found->second;
}

void WaitGraph::find_waits(size_t i, const Json& peer) {
  const bool sends = stands(peer, "sends"), receives = stands(peer, "receives"),
             matched = stands(peer, "matched");
  if (!sends && !receives && !matched) return;
  const size_t other = find(x_processes[i], peer);
  const std::string name = other == kNobody ? text_of(peer, "address") : name_of(other);
  const bool unpolled = x_unpolled.contains({other, text_of(peer, "address")});
  const auto add = [&](size_t to, const std::string& why) {
    const bool tell = unpolled && to == other;
    x_waits.push_back(
        {i, to, name,
         tell ? fmt::format("{}; no thread of {} polls that endpoint", why, name) : why});
  };
  if (sends) add(other, why_of_send(peer, name, same_pair(i, peer, other)));
  if (receives) add(other, why_of_receive(peer, name));
  // The process waits for its own NIC.
  const bool own = text_of(peer, "matched_for") == "flush";
  if (other == kNobody && !moves(i) && (sends || receives || !own))
    x_unseen.insert(is_on_host(peer) ? key_on_host(x_processes[i], name) : name);
  if (matched) add(own ? i : other, why_of_matched(peer, name));
}

bool WaitGraph::moves(size_t i) const {
  return text_of(x_processes[i], "verdict") == "moves";
}

bool WaitGraph::waits(size_t i) const {
  return !waits_of(i).empty() && !moves(i);
}

std::span<const Wait> WaitGraph::waits_of(size_t i) const {
  // Not equal_range(): its subrange does not compile with libstdc++ 12 and clang 14.
  return {std::ranges::lower_bound(x_waits, i, {}, &Wait::from),
          std::ranges::upper_bound(x_waits, i, {}, &Wait::from)};
}

std::vector<size_t> WaitGraph::ends() const {
  std::vector<size_t> ends;
  for (const Wait& wait : x_waits)
    if (waits(wait.from) && (wait.to == kNobody || wait.to == wait.from || !waits(wait.to)))
      ends.push_back(wait.to);
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

/// Searches from each process for a path of waits that leads back to it.
std::vector<size_t> WaitGraph::circle() const {
  std::vector<bool> seen(size()), on_way(size());
  for (size_t i = 0; i < size(); ++i) seen[i] = !waits(i);
  for (size_t start = 0; start < size(); ++start) {
    if (seen[start]) continue;
    std::vector<size_t> way{start}, next{0};  // next: the wait to follow, of each process in way
    on_way[start] = seen[start] = true;
    while (!way.empty()) {
      const std::span<const Wait> waits = waits_of(way.back());
      if (next.back() == waits.size()) {
        on_way[way.back()] = false;
        way.pop_back();
        next.pop_back();
        continue;
      }
      const size_t to = waits[next.back()++].to;
      if (to == kNobody || to == way.back()) continue;
      if (on_way[to]) return {std::ranges::find(way, to), way.end()};
      if (seen[to]) continue;
      seen[to] = on_way[to] = true;
      way.push_back(to);
      next.push_back(0);
    }
  }
  return {};
}

}  // namespace fi_erdma
