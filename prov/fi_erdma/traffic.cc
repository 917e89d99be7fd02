#include "fi_erdma/traffic.h"

#include <fmt/core.h>

#include <iterator>

namespace fi_erdma {
namespace {

constexpr Path kPaths[] = {
    {"shm ring", "shm_ring_bytes", ""},
    {"of it: byte ring", "shm_byte_ring_bytes", "",
     "Part of the bytes by shm ring whose packets were longer than a slot of the ring."},
    {"shm CMA", "shm_cma_write_bytes", "shm_cma_read_bytes"},
    {"of it: regions", "shm_region_bytes", "",
     "Part of the bytes by shm CMA that RMA moved from or to a region of the peer."},
    {"shm copied", "shm_copied_out_bytes", "shm_copied_in_bytes"},
    {"NIC packet", "nic_packet_bytes", ""},
    {"of it: fetched", "nic_fetched_bytes", "",
     "Part of the bytes by NIC packet whose packets were too long to be sent inline."},
    {"NIC RDMA", "nic_write_bytes", "nic_read_bytes"},
    {"GPU IPC", "", "gpu_ipc_bytes"},
    {"NIC copied", "nic_copied_bytes", "", "Part of the bytes by NIC that was copied on the way."},
    {"GPU direct", "gpu_direct_bytes", "",
     "Part of the bytes by NIC that it moved from or to GPU memory itself."},
    {"GPU staged", "gpu_staged_bytes", "",
     "Part of the bytes that was copied from or to GPU memory by CUDA."},
};

std::optional<uint64_t> number(const Block& block, const char* name) {
  return *name ? block.number(name) : std::nullopt;
}

void add(std::optional<uint64_t>& sum, std::optional<uint64_t> more) {
  if (more) sum = sum.value_or(0) + *more;
}

}  // namespace

std::span<const Path> paths() {
  return kPaths;
}

Bytes bytes_of(const Block& block, const Path& path) {
  return {number(block, path.sent), number(block, path.received)};
}

Bytes bytes_of(const Snapshot& snapshot, const Path& path) {
  Bytes sum;
  const auto count = [&](const Block& block) {
    const Bytes bytes = bytes_of(block, path);
    add(sum.sent, bytes.sent);
    add(sum.received, bytes.received);
  };
  if (const Block* const process = snapshot.process()) count(*process);
  for (const Block& endpoint : snapshot.blocks("endpoint")) count(endpoint);
  return sum;
}

namespace {

template <typename What>
Bytes sum_of_paths(const What& what) {
  Bytes sum;
  for (const Path& path : paths()) {
    if (path.part) continue;
    const Bytes bytes = bytes_of(what, path);
    add(sum.sent, bytes.sent);
    add(sum.received, bytes.received);
  }
  return sum;
}

}  // namespace

Bytes all_bytes_of(const Block& block) {
  return sum_of_paths(block);
}

Bytes all_bytes_of(const Snapshot& snapshot) {
  return sum_of_paths(snapshot);
}

uint64_t growth(std::optional<uint64_t> from, std::optional<uint64_t> to) {
  const uint64_t before = from.value_or(0), after = to.value_or(0);
  return after > before ? after - before : 0;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string total_text(std::optional<uint64_t> bytes) {
  return bytes ? bytes_text(double(*bytes)) : "-";
}

std::string rate_text(std::optional<double> bytes_per_second) {
  return bytes_per_second ? bytes_text(*bytes_per_second) + "/s" : "-";
}

}  // namespace fi_erdma
