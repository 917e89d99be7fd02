#include "fi_erdma/costs.h"

#include <string>
#include <vector>

#include "libcheck.h"

using fi_erdma::Block;
using fi_erdma::BlockKind;
using fi_erdma::Snapshot;

namespace {

Block endpoint(std::string other_hosts, uint64_t copied, std::string gpu_memory, uint64_t staged) {
  return {3,
          {{"nic_copied_bytes", copied}, {"gpu_staged_bytes", staged}},
          {{"other_hosts", other_hosts}, {"gpu_memory", gpu_memory}}};
}

Block peer(uint64_t endpoint, std::string path, uint64_t refusals, uint64_t in, uint64_t out) {
  return {0,
          {{"endpoint", endpoint},
           {"shm_cma_refusals", refusals},
           {"shm_copied_in_bytes", in},
           {"shm_copied_out_bytes", out}},
          {{"path", path}}};
}

void expect(const Block& endpoint, std::vector<Block> peers, std::vector<std::string> lines) {
  const Snapshot snapshot{{BlockKind{"peer", {}, std::move(peers)}}};
  const auto costs = costs_of(endpoint, peers_of(snapshot)[3]);
  ck_assert_uint_eq(costs.size(), lines.size());
  for (size_t i = 0; i < lines.size(); ++i) ck_assert_str_eq(costs[i].c_str(), lines[i].c_str());
}

TEST(ways_that_cost_nothing_more_have_no_line) {
  expect(endpoint("RDMA, zero copy", 0, "staged [W602] (why)", 0), {peer(3, "shm", 0, 4096, 4096)},
         {});
  ck_assert(costs_of(endpoint("", 0, "", 0), {}).empty());
}

TEST(copies_count_as_refused_with_peers_that_refuse_alone) {
  expect(endpoint("", 0, "", 0),
         {peer(3, "shm", 1, 1024, 2048), peer(3, "shm", 0, 1 << 20, 0), peer(3, "nic", 0, 0, 0),
          peer(4, "shm", 1, 1 << 20, 0), peer(3, "shm", 2, 0, 1024)},
         {"CMA is refused with 2 of 3 peers: 4.00 KiB copied [W401]; fi_erdma doctor tells the "
          "remedy"});
}

TEST(bytes_that_the_nic_copied_are_told_with_the_reason_where_it_is_known) {
  expect(endpoint("RDMA of copies [W203] (FI_ERDMA_MR_CACHE=off)", 2048, "", 0), {},
         {"2.00 KiB copied for the NIC: RDMA of copies [W203] (FI_ERDMA_MR_CACHE=off)"});
  expect(endpoint("RDMA, zero copy", 2048, "", 0), {},
         {"2.00 KiB copied for the NIC [W203]; FI_ERDMA_LOG=info tells why"});
}

TEST(bytes_that_were_not_registered_are_told_by_reason) {
  Block one = endpoint("RDMA, zero copy from 256 KiB on [W203] (no userfaultfd)", 4096, "", 0);
  one.numbers["nic_refused_short_bytes"] = 3072;
  one.numbers["nic_refused_room_bytes"] = 1024;
  expect(one, {},
         {"4.00 KiB copied for the NIC here; not registered: 3.00 KiB because transfers are "
          "shorter than 256 KiB without userfaultfd [W404], 1.00 KiB because the limit of locked "
          "memory, or of the NIC, is reached [W402]"});
  // The peer sent the bytes.
  Block other = endpoint("RDMA, zero copy", 0, "", 0);
  other.numbers["nic_refused_memory_bytes"] = 1024;
  expect(other, {},
         {"0 B copied for the NIC here; not registered: 1.00 KiB because this memory cannot be "
          "registered [W203]"});
}

TEST(staged_bytes_are_told_with_the_reason_where_it_is_known) {
  expect(endpoint("", 0, "staged [W602] (no dmabuf)", 1024), {},
         {"1.00 KiB of GPU memory copied through host memory: staged [W602] (no dmabuf)"});
  expect(endpoint("", 0, "GPUDirect where it can be registered", 1024), {},
         {"1.00 KiB of GPU memory copied through host memory [W602]; FI_ERDMA_LOG=info tells why"});
}

}  // namespace
