#include "fabric/stat_blocks.h"

#include <cstddef>
#include <string_view>

namespace erdma::fabric {
namespace {

using stat_layout::Meaning;
using stat_layout::Type;

constexpr uint32_t kMostEndpoints = 256;
constexpr uint32_t kMostPeers = 16384;

template <typename Block>
constexpr uint32_t block_bytes = (sizeof(Block) + 63) / 64 * 64;

constexpr util::StatKind kKinds[] = {
    {"process", block_bytes<ProcessBlock>, 1},
    {"endpoint", block_bytes<EndpointBlock>, kMostEndpoints},
    {"peer", block_bytes<PeerBlock>, kMostPeers},
    {"peer_nic", block_bytes<PeerNicBlock>, kMostPeers, kPeerKind},
    {"peer_waits", block_bytes<PeerWaitsBlock>, kMostPeers, kPeerKind},
};

constexpr const char* unit_of(std::string_view counter) {
  return counter.ends_with("_bytes") ? "bytes" : "";
}

template <typename Member>
constexpr util::StatField field(const char* name, StatKindIndex kind, size_t offset, Member*,
                                const char* unit, Meaning meaning) {
  constexpr bool is_number = std::is_same_v<Member, uint64_t>;
  return {name, kind, is_number ? Type::number : Type::text, meaning, unit, offset, sizeof(Member)};
}
#define FIELD(Block, kind, member, unit, meaning)                                               \
  field(#member, kind, offsetof(Block, member), static_cast<decltype(Block::member)*>(nullptr), \
        unit, meaning)
#define COUNTER(Block, kind, name, member)                                              \
  {                                                                                     \
    name, kind, Type::number, Meaning::counter, unit_of(name), offsetof(Block, member), \
        sizeof(uint64_t)                                                                \
  }
// The counters of a block, which all blocks call shm, nic and gpu.
#define SHM_COUNTERS(Block, kind)                                         \
  COUNTER(Block, kind, "shm_ring_bytes", shm.ring_bytes),                 \
      COUNTER(Block, kind, "shm_cma_read_bytes", shm.cma_read_bytes),     \
      COUNTER(Block, kind, "shm_cma_write_bytes", shm.cma_write_bytes),   \
      COUNTER(Block, kind, "shm_copied_in_bytes", shm.bounce_in_bytes),   \
      COUNTER(Block, kind, "shm_copied_out_bytes", shm.bounce_out_bytes), \
      COUNTER(Block, kind, "shm_cma_refusals", shm.cma_refusals),         \
      COUNTER(Block, kind, "shm_byte_ring_bytes", shm.byte_ring_bytes),   \
      COUNTER(Block, kind, "shm_region_bytes", shm.region_bytes),         \
      COUNTER(Block, kind, "shm_connects", shm.connects),                 \
      COUNTER(Block, kind, "shm_waits", shm.waits)
#define NIC_COUNTERS(Block, kind)                                                 \
  COUNTER(Block, kind, "nic_packet_bytes", nic.sent_bytes),                       \
      COUNTER(Block, kind, "nic_read_bytes", nic.read_bytes),                     \
      COUNTER(Block, kind, "nic_write_bytes", nic.write_bytes),                   \
      COUNTER(Block, kind, "nic_copied_bytes", nic.bounce_bytes),                 \
      COUNTER(Block, kind, "nic_connects", nic.connects),                         \
      COUNTER(Block, kind, "nic_reclaimed", nic.reclaimed),                       \
      COUNTER(Block, kind, "nic_fetched_bytes", nic.fetched_bytes),               \
      COUNTER(Block, kind, "nic_waits", nic.waits),                               \
      COUNTER(Block, kind, "nic_refused_always_bytes", nic.refused_always_bytes), \
      COUNTER(Block, kind, "nic_refused_short_bytes", nic.refused_short_bytes),   \
      COUNTER(Block, kind, "nic_refused_room_bytes", nic.refused_room_bytes),     \
      COUNTER(Block, kind, "nic_refused_memory_bytes", nic.refused_memory_bytes), \
      COUNTER(Block, kind, "gpu_direct_bytes", gpu.direct_bytes),                 \
      COUNTER(Block, kind, "gpu_staged_bytes", gpu.staged_bytes),                 \
      COUNTER(Block, kind, "gpu_ipc_bytes", gpu.ipc_bytes),                       \
      COUNTER(Block, kind, "gpu_flushes", gpu.flushes)
#define OF_PROCESS(member, unit, meaning) FIELD(ProcessBlock, kProcessKind, member, unit, meaning)
#define OF_ENDPOINT(member, unit, meaning) \
  FIELD(EndpointBlock, kEndpointKind, member, unit, meaning)
#define OF_PEER(member, unit, meaning) FIELD(PeerBlock, kPeerKind, member, unit, meaning)
#define OF_WAITS(member, unit, meaning) FIELD(PeerWaitsBlock, kPeerWaitsKind, member, unit, meaning)

/// Fields of the page. A counter that the provider does not maintain has no field, since a reader
/// would take it for 0.
constexpr util::StatField kFields[] = {
    OF_PROCESS(pid, "", Meaning::fact),
    OF_PROCESS(started, "ns", Meaning::fact),
    OF_PROCESS(rank, "", Meaning::fact),
    OF_PROCESS(ranks, "", Meaning::fact),
    OF_PROCESS(local_rank, "", Meaning::fact),
    OF_PROCESS(left_out, "", Meaning::counter),
    OF_PROCESS(hidden_endpoints, "", Meaning::gauge),
    OF_PROCESS(shm_refused_bytes, "bytes", Meaning::counter),
    OF_PROCESS(host, "", Meaning::fact),
    OF_PROCESS(command, "", Meaning::fact),
    OF_PROCESS(launcher, "", Meaning::fact),
    OF_PROCESS(job, "", Meaning::fact),
    OF_PROCESS(provider, "", Meaning::fact),
    OF_PROCESS(libfabric, "", Meaning::fact),
    OF_PROCESS(question_fd, "", Meaning::fact),
    OF_PROCESS(question_inode, "", Meaning::fact),
    OF_ENDPOINT(answers, "", Meaning::counter),
    OF_ENDPOINT(answered, "ns", Meaning::fact),
    OF_ENDPOINT(any_receives, "", Meaning::gauge),
    OF_ENDPOINT(any_receive_id, "", Meaning::gauge),
    OF_ENDPOINT(any_receive_bytes, "bytes", Meaning::gauge),
    OF_ENDPOINT(any_receive_tag, "", Meaning::gauge),
    OF_ENDPOINT(any_receive_ignore, "", Meaning::gauge),
    OF_ENDPOINT(any_receive_waited, "ns", Meaning::gauge),
    OF_ENDPOINT(enabled, "", Meaning::fact),
    OF_ENDPOINT(speed, "bit/s", Meaning::fact),
    OF_ENDPOINT(address, "", Meaning::fact),
    OF_ENDPOINT(device, "", Meaning::fact),
    OF_ENDPOINT(other_hosts, "", Meaning::fact),
    OF_ENDPOINT(this_host, "", Meaning::fact),
    OF_ENDPOINT(gpu_memory, "", Meaning::fact),
    OF_ENDPOINT(changed, "", Meaning::fact),
    OF_ENDPOINT(settings, "", Meaning::fact),
    OF_PEER(endpoint, "", Meaning::fact),
    OF_PEER(since, "ns", Meaning::fact),
    OF_PEER(path, "", Meaning::fact),
    OF_PEER(address, "", Meaning::fact),
    OF_WAITS(link, "", Meaning::fact),
    OF_WAITS(send_kind, "", Meaning::fact),
    OF_WAITS(sends_for, "", Meaning::fact),
    OF_WAITS(matched_for, "", Meaning::fact),
    OF_WAITS(room, "", Meaning::gauge),
    OF_WAITS(throttled, "", Meaning::gauge),
    OF_WAITS(sends, "", Meaning::gauge),
    OF_WAITS(send_id, "", Meaning::gauge),
    OF_WAITS(send_bytes, "bytes", Meaning::gauge),
    OF_WAITS(send_tag, "", Meaning::gauge),
    OF_WAITS(receives, "", Meaning::gauge),
    OF_WAITS(receive_id, "", Meaning::gauge),
    OF_WAITS(receive_bytes, "bytes", Meaning::gauge),
    OF_WAITS(receive_tag, "", Meaning::gauge),
    OF_WAITS(receive_ignore, "", Meaning::gauge),
    OF_WAITS(unexpected, "", Meaning::gauge),
    OF_WAITS(unexpected_id, "", Meaning::gauge),
    OF_WAITS(unexpected_bytes, "bytes", Meaning::gauge),
    OF_WAITS(unexpected_tag, "", Meaning::gauge),
    OF_WAITS(matched, "", Meaning::gauge),
    OF_WAITS(matched_id, "", Meaning::gauge),
    OF_WAITS(matched_bytes, "bytes", Meaning::gauge),
    OF_WAITS(matched_tag, "", Meaning::gauge),
    OF_WAITS(send_waited, "ns", Meaning::gauge),
    OF_WAITS(receive_waited, "ns", Meaning::gauge),
    OF_WAITS(unexpected_waited, "ns", Meaning::gauge),
    OF_WAITS(matched_waited, "ns", Meaning::gauge),
    SHM_COUNTERS(ProcessBlock, kProcessKind),
    NIC_COUNTERS(ProcessBlock, kProcessKind),
    SHM_COUNTERS(EndpointBlock, kEndpointKind),
    NIC_COUNTERS(EndpointBlock, kEndpointKind),
    SHM_COUNTERS(PeerBlock, kPeerKind),
    NIC_COUNTERS(PeerNicBlock, kPeerNicKind),
};
// A new counter needs a field.
static_assert(sizeof(transport::ShmCounters) == 10 * sizeof(uint64_t));
static_assert(sizeof(transport::NicCounters) == 12 * sizeof(uint64_t));
static_assert(sizeof(transport::GpuCounters) == 4 * sizeof(uint64_t));
static_assert(block_bytes<PeerBlock> == 192);

}  // namespace

const std::span<const util::StatKind> kStatKinds(kKinds);
const std::span<const util::StatField> kStatFields(kFields);

}  // namespace erdma::fabric
