#include "fabric/endpoint_statistics.h"

#include <new>
#include <string>

#include "fabric/endpoint_summary.h"
#include "fabric/env.h"
#include "util/clock.h"

namespace erdma::fabric {
namespace {

/// Updates `waited`, the time for which the oldest operation has been shown. `shown_id` and `id`:
/// the oldest operation in the last answer and now. `passed`: time since the last answer. Both
/// times are in nanoseconds.
void age(uint64_t& waited, uint64_t shown_id, uint64_t id, uint64_t passed) noexcept {
  waited = id != 0 && id == shown_id ? waited + passed : 0;
}

/// `passed`: nanoseconds since the last answer.
void show(const protocol::PeerWaits& waits, uint64_t passed, PeerWaitsBlock& to) noexcept {
  const protocol::OpenOperations &sends = waits.sends, &receives = waits.receives,
                                 &unexpected = waits.unexpected, &matched = waits.matched;
  util::put_text(to.link, waits.link.state);
  util::put_text(to.send_kind, waits.send_kind);
  util::put_text(to.sends_for, waits.sends_for);
  util::put_text(to.matched_for, waits.matched_for);
  to.room = waits.link.room;
  to.throttled = waits.throttled;
  age(to.send_waited, to.send_id, sends.id, passed);
  age(to.receive_waited, to.receive_id, receives.id, passed);
  age(to.unexpected_waited, to.unexpected_id, unexpected.id, passed);
  age(to.matched_waited, to.matched_id, matched.id, passed);
  to.sends = sends.count, to.send_id = sends.id;
  to.send_bytes = sends.bytes, to.send_tag = sends.tag;
  to.receives = receives.count, to.receive_id = receives.id;
  to.receive_bytes = receives.bytes, to.receive_tag = receives.tag;
  to.receive_ignore = receives.ignore;
  to.unexpected = unexpected.count, to.unexpected_id = unexpected.id;
  to.unexpected_bytes = unexpected.bytes, to.unexpected_tag = unexpected.tag;
  to.matched = matched.count, to.matched_id = matched.id;
  to.matched_bytes = matched.bytes, to.matched_tag = matched.tag;
}

}  // namespace

EndpointStatistics::EndpointStatistics(bool wanted) noexcept {
  if (wanted) x_page = ProcessPage::get();
  if (x_page) x_block = x_page->take<EndpointBlock>(kEndpointKind);
  if (x_block) {
    ProcessPage::end_change(*x_block);
  } else if (x_page) {
    x_page->leave_out();
    x_page->hide_endpoint(1);
  }
}

EndpointStatistics::~EndpointStatistics() {
  if (!x_page) return;
  x_page->begin_move();
  x_page->keep(all_shm_counters(), all_nic_counters(), all_gpu_counters(), copied_for_refusals());
  for (const auto& [address, peer] : x_peers) x_page->give_back(&block_of(peer));
  x_page->give_back(x_block);
  if (!x_block) x_page->hide_endpoint(-1);
  x_page->end_move();
}

void EndpointStatistics::enabled(const EndpointFacts& facts,
                                 const std::vector<ShownSetting>& settings) noexcept try {
  if (!x_block || !x_page->ours()) return;
  std::string all, changed;
  for (const ShownSetting& setting : settings) {
    all += (all.empty() ? "" : " ") + std::string(setting.name) + "=" + setting.value;
    if (setting.changed) changed += (changed.empty() ? "" : ",") + std::string(setting.name);
  }
  const FactTexts texts = describe(facts);
  ProcessPage::begin_change(*x_block);
  x_block->enabled = 1;
  x_block->speed = facts.nic && facts.speed ? facts.speed : stat_layout::kUnknown;
  util::put_text(x_block->address, facts.name);
  util::put_text(x_block->device, facts.device);
  util::put_text(x_block->other_hosts, texts.other_hosts);
  util::put_text(x_block->this_host, texts.this_host);
  util::put_text(x_block->gpu_memory, texts.gpu_memory);
  util::put_text(x_block->changed, changed);
  util::put_text(x_block->settings, all);
  ProcessPage::end_change(*x_block);
} catch (const std::bad_alloc&) {
  // The page shows the endpoint without these facts.
  ProcessPage::begin_change(*x_block);
  x_block->enabled = 1;
  x_block->speed = stat_layout::kUnknown;
  ProcessPage::end_change(*x_block);
}

PeerBlock* EndpointStatistics::peer_block(const util::SocketAddress& peer) {
  ShownPeer& shown = x_peers[peer];
  if (shown.block != ShownPeer::kNone) {
    PeerBlock& block = block_of(shown);
    ProcessPage::begin_change(block);
    return &block;
  }
  PeerBlock* const taken = x_page->take<PeerBlock>(kPeerKind);
  if (taken) {
    shown.block = uint32_t(x_page->index_of(*taken)) & ShownPeer::kNone;
    x_left_out.erase(peer);
  } else {
    x_peers.erase(peer);
    if (x_left_out.insert(peer).second) x_page->leave_out();
  }
  return taken;
}

void EndpointStatistics::leads(const util::SocketAddress& peer, const char* path) noexcept try {
  if (!x_block || !x_page->ours()) return;
  PeerBlock* const block = peer_block(peer);
  if (!block) return;
  x_peers[peer].addressed = true;
  block->endpoint = x_page->index_of(*x_block);
  block->since = util::nanoseconds_of(CLOCK_REALTIME);
  util::put_text(block->path, path);
  util::put_text(block->address, peer.to_string().c_str());
  ProcessPage::end_change(*block);
} catch (const std::bad_alloc&) {
  // The peer is not shown.
}

/// The block of a peer for the counters of a link. Null: there is none. `path`: the transport of
/// the link, which is shown until leads() sets it.
PeerBlock* EndpointStatistics::counting_block(const util::SocketAddress& peer,
                                              const char* path) noexcept try {
  if (!x_block || !x_page->ours()) return nullptr;
  PeerBlock* const block = peer_block(peer);
  if (!block) return nullptr;
  x_peers[peer].counts = true;
  block->endpoint = x_page->index_of(*x_block);
  if (*path && !block->path[0]) util::put_text(block->path, path);
  util::put_text(block->address, peer.to_string().c_str());
  ProcessPage::end_change(*block);
  return block;
} catch (const std::bad_alloc&) {
  return nullptr;
}

/// The part of a peer's block for counters of NIC and GPU memory. Null: there is none.
PeerNicBlock* EndpointStatistics::nic_part(const PeerBlock* block) noexcept {
  return block ? x_page->part<PeerNicBlock>(*block, kPeerNicKind) : nullptr;
}

transport::ShmCounters& EndpointStatistics::shm_counters_of(
    const util::SocketAddress& peer) noexcept {
  PeerBlock* const block = counting_block(peer, "shm");
  return block ? block->shm : shm_counters();
}

transport::NicCounters& EndpointStatistics::nic_counters_of(
    const util::SocketAddress& peer) noexcept {
  PeerNicBlock* const part = nic_part(counting_block(peer, "nic"));
  return part ? part->nic : nic_counters();
}

transport::GpuCounters& EndpointStatistics::gpu_counters_of(
    const util::SocketAddress& peer) noexcept {
  PeerNicBlock* const part = nic_part(counting_block(peer, ""));
  return part ? part->gpu : gpu_counters();
}

transport::ShmCounters EndpointStatistics::all_shm_counters() const noexcept {
  transport::ShmCounters all = x_block ? x_block->shm : x_own_shm;
  for (const auto& [address, peer] : x_peers) transport::add(all, block_of(peer).shm);
  return all;
}

transport::NicCounters EndpointStatistics::all_nic_counters() const noexcept {
  transport::NicCounters all = x_block ? x_block->nic : x_own_nic;
  for (const auto& [address, peer] : x_peers)
    if (const auto* part = x_page->known_part<PeerNicBlock>(block_of(peer), kPeerNicKind))
      transport::add(all, part->nic);
  return all;
}

transport::GpuCounters EndpointStatistics::all_gpu_counters() const noexcept {
  transport::GpuCounters all = x_block ? x_block->gpu : x_own_gpu;
  for (const auto& [address, peer] : x_peers)
    if (const auto* part = x_page->known_part<PeerNicBlock>(block_of(peer), kPeerNicKind))
      transport::add(all, part->gpu);
  return all;
}

/// Bytes copied to and from peers for which the kernel refused CMA.
uint64_t EndpointStatistics::copied_for_refusals() const noexcept {
  uint64_t bytes = 0;
  for (const auto& [address, peer] : x_peers)
    if (const transport::ShmCounters& shm = block_of(peer).shm; shm.cma_refusals)
      bytes += shm.bounce_in_bytes + shm.bounce_out_bytes;
  return bytes;
}

uint64_t EndpointStatistics::passed_since_answer() const noexcept {
  const auto passed = Clock::now() - x_answered;
  return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

/// A peer has a block once something was sent to it, and otherwise while something waits for it.
void EndpointStatistics::on_peer_waits(const protocol::PeerWaits& waits) noexcept try {
  if (!x_block || !x_page->ours()) return;
  const auto known = x_peers.find(waits.address);
  const bool addressed = known != x_peers.end() && known->second.addressed;
  const bool counts = known != x_peers.end() && known->second.counts;
  if (!addressed && !counts && !waits.any()) return forget(waits.address);
  PeerBlock* const block = peer_block(waits.address);
  if (!block) return;
  block->endpoint = x_page->index_of(*x_block);
  if (!addressed) util::put_text(block->path, waits.link.path);
  util::put_text(block->address, waits.address.to_string().c_str());
  if (auto* const part = x_page->part<PeerWaitsBlock>(*block, kPeerWaitsKind))
    show(waits, passed_since_answer(), *part);
  ProcessPage::end_change(*block);
} catch (const std::bad_alloc&) {
  // The peer is not shown.
}

void EndpointStatistics::forget(const util::SocketAddress& peer) noexcept {
  const auto known = x_peers.find(peer);
  if (known == x_peers.end()) return;
  x_page->give_back(&block_of(known->second));
  x_peers.erase(known);
}

void EndpointStatistics::on_endpoint_waits(const protocol::OpenOperations& any) noexcept {
  if (!x_block || !x_page->ours()) return;
  ProcessPage::begin_change(*x_block);
  x_block->answered = util::nanoseconds_of(CLOCK_REALTIME);
  age(x_block->any_receive_waited, x_block->any_receive_id, any.id, passed_since_answer());
  x_block->any_receives = any.count, x_block->any_receive_id = any.id;
  x_block->any_receive_bytes = any.bytes, x_block->any_receive_tag = any.tag;
  x_block->any_receive_ignore = any.ignore;
  ++x_block->answers;
  x_answered = Clock::now();
  ProcessPage::end_change(*x_block);
}

}  // namespace erdma::fabric
