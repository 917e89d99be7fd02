#include "fi_erdma/costs.h"

#include <fmt/core.h>

#include "fi_erdma/traffic.h"

namespace fi_erdma {
namespace {

std::string cost_of_refusals(const std::vector<const Block*>& peers) {
  unsigned refused = 0, all = 0;
  uint64_t bytes = 0;
  for (const Block* const peer : peers) {
    if (peer->text("path") != "shm") continue;
    ++all;
    if (!peer->number("shm_cma_refusals").value_or(0)) continue;
    ++refused;
    bytes += refused_bytes(*peer);
  }
  if (!refused) return {};
  return fmt::format(
      "CMA is refused with {} of {} peers: {} copied [W401]; fi_erdma doctor tells the remedy",
      refused, all, bytes_text(double(bytes)));
}

/// The counters of memory that was not registered with the NIC, with the reason and its code.
struct Reason {
  const char* counter;
  const char* text;
};
constexpr Reason kReasons[] = {
    {"nic_refused_always_bytes", "no memory is registered during this run [W203]"},
    {"nic_refused_short_bytes", "transfers are shorter than 256 KiB without userfaultfd [W404]"},
    {"nic_refused_room_bytes", "the limit of locked memory, or of the NIC, is reached [W402]"},
    {"nic_refused_memory_bytes", "this memory cannot be registered [W203]"}};

/// What was copied for want of a registration here; empty: nothing was.
std::string reasons_of(const Block& endpoint) {
  std::string text;
  for (const auto& [counter, reason] : kReasons)
    if (const uint64_t bytes = endpoint.number(counter).value_or(0))
      text += fmt::format("{}{} because {}", text.empty() ? "" : ", ", bytes_text(double(bytes)),
                          reason);
  return text;
}

/// `way`: the endpoint's own description of this path, with the reason and the code if it knew
/// them when it opened.
std::string cost_of_way(const char* what, uint64_t bytes, const char* code,
                        const std::string& way) {
  if (!bytes) return {};
  const std::string cost = fmt::format("{} {}", bytes_text(double(bytes)), what);
  return way.find(code) == way.npos ? cost + " " + code + "; FI_ERDMA_LOG=info tells why"
                                    : cost + ": " + way;
}

/// A peer that could not register its memory counts the reason itself.
std::string cost_of_copies(const Block& endpoint) {
  const uint64_t copied = endpoint.number("nic_copied_bytes").value_or(0);
  const std::string way = endpoint.text("other_hosts"), reasons = reasons_of(endpoint);
  if (reasons.empty() || way.find("RDMA of copies") == 0)
    return cost_of_way("copied for the NIC", copied, "[W203]", way);
  return fmt::format("{} copied for the NIC here; not registered: {}", bytes_text(double(copied)),
                     reasons);
}

}  // namespace

uint64_t refused_bytes(const Block& peer) {
  if (!peer.number("shm_cma_refusals").value_or(0)) return 0;
  return peer.number("shm_copied_in_bytes").value_or(0) +
         peer.number("shm_copied_out_bytes").value_or(0);
}

std::vector<std::string> costs_of(const Block& endpoint, const std::vector<const Block*>& peers) {
  const auto counted = [&](const char* name) { return endpoint.number(name).value_or(0); };
  std::vector<std::string> costs = {
      cost_of_refusals(peers), cost_of_copies(endpoint),
      cost_of_way("of GPU memory copied through host memory", counted("gpu_staged_bytes"), "[W602]",
                  endpoint.text("gpu_memory"))};
  std::erase(costs, "");
  return costs;
}

}  // namespace fi_erdma
