#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include <rdma/fi_errno.h>

#include "protocol/address_book.h"
#include "protocol/peer.h"
#include "protocol/receive_queues.h"

namespace erdma::protocol {

class Engine;

/// A receive context that engines share (fi_srx_context(3)): a message that arrives at any of them
/// takes the oldest receive that matches. The caller holds the domain lock. Outlives its engines.
/// A source is one Peer here, whichever engine its messages come to; nothing is sent to it.
class SharedReceives {
 public:
  /// `orphans` hears of what no engine's message belongs to: cancelled receives, peeks in vain.
  explicit SharedReceives(CompletionSink& orphans) noexcept : x_queues(orphans) {}

  /// As Engine::post_receive(). -FI_ENOAV: a directed receive before there is an engine.
  /// `matched`: a message was there already, and its engine was set to work.
  [[nodiscard]] int post(const ReceiveArgs& args, bool& matched) noexcept;
  [[nodiscard]] int probe(const ReceiveArgs& args, Probe kind) noexcept;
  /// -FI_ENOENT if no receive has this context.
  int cancel(const void* context) noexcept { return x_queues.cancel(context) ? 0 : -FI_ENOENT; }
  void set_min_multi_recv(size_t bytes) noexcept { x_queues.min_multi_recv = bytes; }

  // For engines.
  /// Throws std::bad_alloc. All engines have the same book.
  void join(Engine& engine, AddressBook& book);
  /// The engine ends: its messages go, and receives that it was filling are cancelled.
  void leave(Engine& engine, const Receives& receives) noexcept;
  size_t engines() const noexcept { return x_engines.size(); }
  ReceiveQueues& queues() noexcept { return x_queues; }
  /// Throws std::bad_alloc.
  const Peer& source_named(const util::SocketAddress& address);
  void address_removed(uint64_t fi_addr) noexcept { x_table.erase(fi_addr); }

 private:
  int source_at(uint64_t fi_addr, const Peer*& source) noexcept;

  ReceiveQueues x_queues;
  PeerTable x_table;
  AddressBook* x_book = nullptr;  ///< null without an engine
  std::vector<Engine*> x_engines;
  std::unordered_map<util::SocketAddress, std::unique_ptr<Peer>, util::SocketAddressHash> x_sources;
};

}  // namespace erdma::protocol
