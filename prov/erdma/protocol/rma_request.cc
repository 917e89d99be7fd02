// Checks requests of peers completely before any memory is accessed.
#include "protocol/rma_request.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/arguments.h"
#include "protocol/inbound.h"

namespace erdma::protocol {
namespace {

/// Bytes of a read without a remote key. Longer reads need one, whatever the link's packets hold.
constexpr size_t kMaxResult = size_t(1) << 16;

}  // namespace

bool Request::parse(const wire::Segment* more, size_t more_count) noexcept {
  if (header.flags & wire::kHasData) {
    if (length < sizeof(data)) return false;
    std::memcpy(&data, payload, sizeof(data));
    payload += sizeof(data);
    length -= sizeof(data);
  }
  segments[0] = header.segment;
  if (header.flags & wire::kSegments) {
    if (more_count == 0) return false;
    segment_count += more_count;
    std::copy_n(more, more_count, segments + 1);
  }
  for (size_t i = 0; i < segment_count; ++i)
    if (__builtin_add_overflow(total, segments[i].length, &total)) return false;
  if (total > SSIZE_MAX) return false;
  if (header.flags & wire::kKeyed) {
    return length > 0 && inbound::decode(payload, length, remote_key) && total > 0;
  }
  return header.op == wire::Op::write ? length == total : length == 0 && total <= kMaxResult;
}

int Request::locate(Regions* known, uint64_t access) noexcept {
  for (size_t i = 0; i < segment_count; ++i)
    if (const int rc = add_range(known, segments[i], access)) return rc;
  return 0;
}

int Request::add_range(Regions* known, const wire::Segment& segment, uint64_t access) noexcept {
  if (segment.length == 0) return 0;
  Region* region = known ? known->region(segment.key) : nullptr;
  if (!region || (region->access & access) != access) return -FI_EACCES;
  for (size_t i = 0; i < region->iov_count; ++i) {
    const iovec& part = region->iov[i];
    const auto start = reinterpret_cast<uint64_t>(part.iov_base);
    const uint64_t offset = segment.address - start;
    if (segment.address < start || offset > part.iov_len || segment.length > part.iov_len - offset)
      continue;
    regions[memory.count] = region;
    memory.iov[memory.count++] = {static_cast<std::byte*>(part.iov_base) + offset, segment.length};
    memory.length += segment.length;
    return 0;
  }
  return -FI_EACCES;
}

void AtomicParts::on_executed(const transport::Link& link, Request& request,
                              Regions& known) noexcept {
  const wire::RequestId operation = request.initiator();
  if (x_link != &link || x_operation.index != operation.index ||
      x_operation.generation != operation.generation)
    x_count = 0;
  x_link = &link;
  x_operation = operation;
  if (request.header.flags & wire::kLast)
    add_to(request, known);
  else
    keep(request.header.segment.key);
}

/// A key for which there is no room is that of the last packet, unless the peer breaks the rules.
void AtomicParts::keep(uint64_t key) noexcept {
  auto* const end = x_keys.begin() + x_count;
  if (end != x_keys.end() && std::find(x_keys.begin(), end, key) == end) x_keys[x_count++] = key;
}

void AtomicParts::add_to(Request& request, Regions& known) noexcept {
  for (size_t i = 0; i < x_count; ++i) {
    Region* const region = known.region(x_keys[i]);
    auto** const end = request.regions + request.memory.count;
    if (!region || std::find(request.regions, end, region) != end) continue;
    request.memory.iov[request.memory.count] = {};
    request.regions[request.memory.count++] = region;
  }
  x_count = 0;
}

bool AtomicRequest::parse(const Request& request, wire::AtomicWord word) noexcept {
  const auto op = AtomicOp(word.op);
  const bool with_compares = (request.header.flags & wire::kCompare) != 0;
  fetches = (request.header.flags & wire::kFetch) != 0;
  function = atomic_function(word.op, word.datatype);
  element = datatype_size(word.datatype);
  if (!function || with_compares != erdma::protocol::compares(op)) return false;
  const bool with_operands = op != AtomicOp::read;
  if (word.count == 0 || word.count > kMaxAtomicBytes / element) return false;
  const size_t each = (size_t(with_operands) + size_t(with_compares)) * element;
  count = each ? request.length / each : word.count;
  if (count == 0 || count > word.count || count * each != request.length) return false;
  if (with_operands) operands = request.payload;
  if (with_compares) compares = request.payload + count * element;
  return with_operands || fetches;
}

uint64_t AtomicRequest::access() const noexcept {
  if (!fetches) return FI_REMOTE_WRITE;
  return operands ? FI_REMOTE_READ | FI_REMOTE_WRITE : FI_REMOTE_READ;
}

}  // namespace erdma::protocol
