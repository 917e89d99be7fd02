#include "fi_erdma/pair/path_bytes.h"

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "fi_erdma/processes.h"

namespace fi_erdma::pair {
namespace {

constexpr std::pair<const char*, uint64_t PathBytes::*> kCounters[] = {
    {"shm_ring_bytes", &PathBytes::rings},          {"shm_cma_read_bytes", &PathBytes::cma_read},
    {"shm_cma_write_bytes", &PathBytes::cma_write}, {"shm_copied_in_bytes", &PathBytes::copied},
    {"shm_cma_refusals", &PathBytes::refusals},     {"nic_packet_bytes", &PathBytes::nic_packets},
    {"nic_read_bytes", &PathBytes::nic_read},       {"nic_write_bytes", &PathBytes::nic_write},
    {"nic_copied_bytes", &PathBytes::nic_copied}};

}  // namespace

uint64_t PathBytes::by(const std::string& path) const {
  if (path == "rings") return rings;
  if (path == "cma") return cma();
  if (path == "copy") return copied;
  return path == "nic" ? nic() : shm();
}

PathBytes& PathBytes::operator+=(const PathBytes& other) noexcept {
  told = told || other.told;
  for (const auto& [name, member] : kCounters) this->*member += other.*member;
  return *this;
}

void PathBytes::print(const char* whose) const {
  constexpr std::pair<const char*, uint64_t PathBytes::*> kShown[] = {
      {"through rings", &PathBytes::rings},
      {"by CMA read", &PathBytes::cma_read},
      {"by CMA write", &PathBytes::cma_write},
      {"copied through shared memory", &PathBytes::copied},
      {"in packets of the NIC", &PathBytes::nic_packets},
      {"by RDMA READ", &PathBytes::nic_read},
      {"by RDMA WRITE", &PathBytes::nic_write},
      {"of those of the NIC copied", &PathBytes::nic_copied}};
  if (!told) {
    fmt::print("{}: the provider does not tell which way the bytes went\n", whose);
    return;
  }
  fmt::print("{}:\n", whose);
  for (const auto& [name, member] : kShown)
    if (this->*member) fmt::print("  {:>14} bytes {}\n", this->*member, name);
  if (refusals) fmt::print("  CMA was refused {} times\n", refusals);
}

Json PathBytes::to_json() const {
  if (!told) return nullptr;
  Json json = Json::object();
  for (const auto& [name, member] : kCounters) json[name] = this->*member;
  return json;
}

/// The blocks of endpoints have the sums of their peers.
PathBytes bytes_told() {
  const Process self = this_process();
  PathBytes bytes;
  if (!self.page.snapshot) return bytes;
  for (const char* const kind : {"process", "endpoint"})
    if (const BlockKind* const found = self.page.snapshot->kind(kind))
      for (const Block& block : found->blocks)
        for (const auto& [name, member] : kCounters) {
          const auto number = block.number(name);
          bytes.told = bytes.told || number;
          bytes.*member += number.value_or(0);
        }
  return bytes;
}

PathBytes bytes_of_both(Channel& channel, const Channel::Drive& drive) {
  PathBytes bytes = bytes_told();
  return bytes += from_bytes<PathBytes>(channel.swap(bytes_of(bytes), drive));
}

}  // namespace fi_erdma::pair
