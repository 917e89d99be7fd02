// Atomics, where the memory is. Each packet is executed as it comes, so that one peer's are in
// order; elements are atomic whoever asks.
#include <bit>
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/atomic_ops.h"
#include "protocol/engine.h"
#include "util/log.h"

namespace erdma::protocol {
namespace {

/// What an atomic packet says, once it is known to make sense.
struct Ask {
  AtomicFunction function = nullptr;
  size_t element = 0;
  size_t count = 0;  ///< elements in this packet
  bool fetches = false;
  const std::byte* operands = nullptr;
  const std::byte* compares = nullptr;
};

/// False: no peer that keeps the rules sends this.
bool parse_atomic(const Request& request, wire::AtomicWord word, Ask& ask) noexcept {
  const auto op = AtomicOp(word.op);
  const bool compares = (request.header.flags & wire::kCompare) != 0;
  ask.fetches = (request.header.flags & wire::kFetch) != 0;
  ask.function = atomic_function(word.op, word.datatype);
  ask.element = datatype_size(word.datatype);
  if (!ask.function || compares != erdma::protocol::compares(op)) return false;
  const bool operands = op != AtomicOp::read;
  if (word.count == 0 || word.count > kMaxAtomicBytes / ask.element) return false;
  const size_t each = (size_t(operands) + size_t(compares)) * ask.element;
  ask.count = each ? request.length / each : word.count;
  if (ask.count == 0 || ask.count > word.count || ask.count * each != request.length) return false;
  if (operands) ask.operands = request.payload;
  if (compares) ask.compares = request.payload + ask.count * ask.element;
  return operands || ask.fetches;
}

}  // namespace

void Engine::on_atomic(Peer& peer, transport::Link& link, Request& request) noexcept {
  const auto word = std::bit_cast<wire::AtomicWord>(request.header.segment.length);
  Ask ask;
  if (!parse_atomic(request, word, ask))
    return inbound::protocol_violation(link, "a malformed atomic operation");
  request.segments[0] = request.header.segment;
  // All that is still to come of the operation must be permitted, before the first element changes.
  request.segments[0].length = word.count * ask.element;
  const uint64_t access = !ask.fetches    ? FI_REMOTE_WRITE
                          : !ask.operands ? FI_REMOTE_READ
                                          : FI_REMOTE_READ | FI_REMOTE_WRITE;
  if (const int rc = locate(request, access)) {
    ERDMA_INFO(EP_DATA,
               "%s asked for an atomic operation on memory that is not registered for that under "
               "its key: refused\n",
               peer.address.to_string().c_str());
    return x_controls.send_fin(peer, request.initiator(), rc);
  }
  if (request.device()) return x_controls.send_fin(peer, request.initiator(), -FI_EOPNOTSUPP);
  const size_t bytes = ask.count * ask.element;
  if (ask.fetches && peer.result_bytes + bytes > kMostResultBytes)
    return x_controls.send_fin(peer, request.initiator(), -FI_ENOMEM);
  std::byte before[kMaxAtomicBytes];
  auto* const target = static_cast<std::byte*>(request.memory.iov[0].iov_base);
  ask.function(target, ask.operands, ask.compares, ask.fetches ? before : nullptr, ask.count);
  if (request.header.flags & wire::kLast) report_access(peer, request, access);
  if (ask.fetches) {
    const Buffers result{1, bytes, {{before, bytes}}};
    answer(peer, link, request, result, false);
  } else if (request.header.flags & wire::kLast) {
    x_controls.send_fin(peer, request.initiator(), 0);
  }
}

}  // namespace erdma::protocol
