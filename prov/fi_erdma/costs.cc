#include "fi_erdma/costs.h"

#include <fmt/core.h>

#include "fi_erdma/traffic.h"

namespace fi_erdma {
namespace {

std::string cost_of_refusals(const Snapshot& snapshot, const Block& endpoint) {
  const BlockKind* const peers = snapshot.kind("peer");
  if (!peers) return {};
  unsigned refused = 0, all = 0;
  uint64_t bytes = 0;
  for (const Block& peer : peers->blocks) {
    if (peer.number("endpoint") != endpoint.index || peer.text("path") != "shm") continue;
    ++all;
    if (!peer.number("shm_cma_refusals").value_or(0)) continue;
    ++refused;
    bytes += peer.number("shm_copied_in_bytes").value_or(0) +
             peer.number("shm_copied_out_bytes").value_or(0);
  }
  if (!refused) return {};
  return fmt::format(
      "CMA is refused with {} of {} peers: {} copied [W401]; fi_erdma doctor tells the remedy",
      refused, all, bytes_text(double(bytes)));
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

}  // namespace

std::vector<std::string> costs_of(const Snapshot& snapshot, const Block& endpoint) {
  const auto counted = [&](const char* name) { return endpoint.number(name).value_or(0); };
  std::vector<std::string> costs = {
      cost_of_refusals(snapshot, endpoint),
      cost_of_way("copied for the NIC", counted("nic_copied_bytes"), "[W203]",
                  endpoint.text("other_hosts")),
      cost_of_way("of GPU memory copied through host memory", counted("gpu_staged_bytes"), "[W602]",
                  endpoint.text("gpu_memory"))};
  std::erase(costs, "");
  return costs;
}

}  // namespace fi_erdma
