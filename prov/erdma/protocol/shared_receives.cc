#include "protocol/shared_receives.h"

#include <new>

#include <rdma/fi_errno.h>

#include "protocol/engine.h"

namespace erdma::protocol {

void SharedReceives::join(Engine& engine, AddressBook& book) {
  x_engines.push_back(&engine);
  x_book = &book;
}

void SharedReceives::leave(Engine& engine, const Receives& receives) noexcept {
  x_queues.forget_messages(receives);
  std::erase(x_engines, &engine);
  if (!x_engines.empty()) return;
  x_book = nullptr;
  x_table = {};
}

const Peer& SharedReceives::source_named(const util::SocketAddress& address) {
  const auto found = x_sources.find(address);
  if (found != x_sources.end()) return *found->second;
  return *x_sources.emplace(address, std::make_unique<Peer>(address)).first->second;
}

int SharedReceives::source_at(uint64_t fi_addr, const Peer*& source) noexcept try {
  source = nullptr;
  if (fi_addr == kAnySource) return 0;
  if (!x_book) return -FI_ENOAV;
  source = x_table.find(fi_addr);
  if (source) return 0;
  const util::SocketAddress address = x_book->address_of(fi_addr);
  if (!address.set()) return -FI_EINVAL;
  source = &source_named(address);
  x_table.set(fi_addr, const_cast<Peer*>(source));
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

int SharedReceives::post(const ReceiveArgs& args, bool& matched) noexcept {
  const Peer* source = nullptr;
  if (const int bad = source_at(args.source, source)) return bad;
  Receive* receive = x_queues.make(args);
  if (!receive) return -FI_ENOMEM;
  receive->source = source;
  UnexpectedEntry* message = x_queues.matcher(args.tagged).post(*receive);
  matched = message != nullptr;
  if (matched)
    x_queues.satisfy(*receive, static_cast<Unexpected&>(*message));
  else
    receive->posted = true;
  return 0;
}

int SharedReceives::probe(const ReceiveArgs& args, Probe kind) noexcept {
  if (is_claim(kind)) return x_queues.probe(args, kind, nullptr);
  const Peer* source = nullptr;
  if (const int bad = source_at(args.source, source)) return bad;
  for (Engine* engine : x_engines) engine->progress(true);
  return x_queues.probe(args, kind, source);
}

}  // namespace erdma::protocol
