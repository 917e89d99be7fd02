#include "fi_erdma/pair/path_bytes.h"

#include <fmt/core.h>

#include "fi_erdma/processes.h"

namespace fi_erdma::pair {
namespace {

struct Counter {
  const char* name;  ///< name of the counter in the page
  uint64_t PathBytes::*bytes;
  const char* how;  ///< the words after "N bytes"; null: the counter is not in bytes
  const char* way;  ///< name of the path; null: not a path of its own
};
constexpr Counter kCounters[] = {
    {"shm_ring_bytes", &PathBytes::rings, "through rings", "shm ring"},
    {"shm_byte_ring_bytes", &PathBytes::byte_ring, "of those through rings longer than a slot",
     nullptr},
    {"shm_cma_read_bytes", &PathBytes::cma_read, "by CMA read", "CMA reads"},
    {"shm_cma_write_bytes", &PathBytes::cma_write, "by CMA write", "CMA writes"},
    {"shm_copied_in_bytes", &PathBytes::copied, "copied through shared memory", "shm copied"},
    {"shm_cma_refusals", &PathBytes::refusals, nullptr, nullptr},
    {"nic_packet_bytes", &PathBytes::nic_packets, "in packets of the NIC", "NIC packets"},
    {"nic_fetched_bytes", &PathBytes::nic_fetched, "of those in packets not sent inline", nullptr},
    {"nic_read_bytes", &PathBytes::nic_read, "by RDMA READ", "RDMA READ"},
    {"nic_write_bytes", &PathBytes::nic_write, "by RDMA WRITE", "RDMA WRITE"},
    {"nic_copied_bytes", &PathBytes::nic_copied, "of those of the NIC copied", nullptr}};

}  // namespace

uint64_t PathBytes::by(const std::string& path) const {
  if (path == "rings") return rings;
  if (path == "cma") return cma();
  if (path == "copy") return copied;
  return path == "nic" ? nic() : shm();
}

PathBytes& PathBytes::operator+=(const PathBytes& other) noexcept {
  told = told || other.told;
  for (const Counter& counter : kCounters) this->*counter.bytes += other.*counter.bytes;
  return *this;
}

void PathBytes::print(const char* whose) const {
  if (!told) {
    fmt::print("{}: the provider does not tell which way the bytes went\n", whose);
    return;
  }
  fmt::print("{}:\n", whose);
  for (const Counter& counter : kCounters)
    if (counter.how && this->*counter.bytes)
      fmt::print("  {:>14} bytes {}\n", this->*counter.bytes, counter.how);
  if (refusals) fmt::print("  CMA was refused {} times\n", refusals);
}

std::string PathBytes::ways() const {
  std::string text;
  for (const Counter& counter : kCounters)
    if (counter.way && this->*counter.bytes)
      text += (text.empty() ? "" : ", ") + std::string(counter.way);
  return text;
}

Json PathBytes::to_json() const {
  if (!told) return nullptr;
  Json json = Json::object();
  for (const Counter& counter : kCounters) json[counter.name] = this->*counter.bytes;
  return json;
}

PathBytes bytes_told() {
  const auto counted = counters_of(this_process());
  PathBytes bytes;
  for (const Counter& counter : kCounters)
    if (const auto found = counted.find(counter.name); found != counted.end())
      bytes.told = true, bytes.*counter.bytes = found->second;
  return bytes;
}

PathBytes bytes_of_both(Channel& channel, const Channel::Drive& drive) {
  PathBytes bytes = bytes_told();
  return bytes += from_bytes<PathBytes>(channel.swap(bytes_of(bytes), drive));
}

}  // namespace fi_erdma::pair
