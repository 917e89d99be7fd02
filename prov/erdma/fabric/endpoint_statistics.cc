#include "fabric/endpoint_statistics.h"

#include <new>
#include <string>

#include "fabric/endpoint_summary.h"
#include "fabric/env.h"

namespace erdma::fabric {

EndpointStatistics::EndpointStatistics(bool wanted) noexcept {
  if (wanted) x_page = ProcessPage::get();
  if (x_page) x_block = x_page->take<EndpointBlock>(kEndpointKind);
  if (x_block) ProcessPage::end_change(*x_block);
}

EndpointStatistics::~EndpointStatistics() {
  if (!x_page) return;
  for (const auto& [address, block] : x_peers) x_page->give_back(block);
  if (x_block) x_page->keep(x_block->shm, x_block->nic);
  x_page->give_back(x_block);
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
  // It is shown as not enabled, without these.
}

PeerBlock* EndpointStatistics::peer_block(const util::SocketAddress& peer) {
  PeerBlock*& block = x_peers[peer];
  if (block) {
    ProcessPage::begin_change(*block);
    return block;
  }
  PeerBlock* const taken = x_page->take<PeerBlock>(kPeerKind);
  if (taken)
    block = taken;
  else
    x_peers.erase(peer);
  return taken;
}

void EndpointStatistics::leads(const util::SocketAddress& peer, const char* path) noexcept try {
  if (!x_block || !x_page->ours()) return;
  PeerBlock* const block = peer_block(peer);
  if (!block) return;
  block->endpoint = x_page->index_of(*x_block);
  block->since = nanoseconds_since_1970();
  util::put_text(block->path, path);
  util::put_text(block->address, peer.to_string().c_str());
  ProcessPage::end_change(*block);
} catch (const std::bad_alloc&) {
  // The peer is not shown.
}

}  // namespace erdma::fabric
