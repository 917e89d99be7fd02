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
/// Each source has one Peer here, whichever engines its messages come to. This Peer serves for
/// matching only; no packet is sent to it.
class SharedReceives {
 public:
  /// `default_sink` gets the completions that belong to no engine's message: cancelled receives,
  /// and probes that found nothing.
  explicit SharedReceives(CompletionSink& default_sink) noexcept : x_queues(default_sink) {}

  /// As Engine::post_receive(). -FI_ENOAV: a receive that names a source, while the context has no
  /// engine. Sets `matched` if a message was there already; its engine may then have packets to
  /// send.
  [[nodiscard]] int post(const ReceiveArgs& args, bool& matched) noexcept;
  [[nodiscard]] int probe(const ReceiveArgs& args, Probe kind) noexcept;
  /// -FI_ENOENT if no receive has this context.
  int cancel(const void* context) noexcept { return x_queues.cancel(context) ? 0 : -FI_ENOENT; }
  void set_min_multi_recv(size_t bytes) noexcept { x_queues.min_multi_recv = bytes; }

  // For engines.
  /// Throws std::bad_alloc. All engines have the same address book.
  void join(Engine& engine, AddressBook& book);
  /// The engine ends: removes its unexpected messages.
  void leave(Engine& engine, const Receives& receives) noexcept;
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
