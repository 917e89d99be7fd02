#include "transport/staging/offers.h"

#include <algorithm>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"

namespace erdma::transport::staging {
namespace {

/// More allocations of a peer than this are opened anew in turn, which takes longer than to copy.
constexpr size_t kMostOpen = 16;
/// Copied in one poll(): about a millisecond over PCIe.
constexpr size_t kBytesPerPoll = size_t(32) << 20;

}  // namespace

void Offer::encode(Exposure& exposure) const noexcept {
  static_assert(sizeof(handle.bytes) + sizeof(handle.id) + sizeof(offset) == Exposure::kOfferBytes);
  std::byte* to = exposure.bytes;
  std::memcpy(to, &handle.bytes, sizeof(handle.bytes));
  std::memcpy(to += sizeof(handle.bytes), &handle.id, sizeof(handle.id));
  std::memcpy(to += sizeof(handle.id), &offset, sizeof(offset));
  exposure.size = Exposure::kOfferBytes;
}

Offer Offer::decode(const Exposure& exposure) noexcept {
  Offer offer{};
  const std::byte* from = exposure.bytes;
  std::memcpy(&offer.handle.bytes, from, sizeof(offer.handle.bytes));
  std::memcpy(&offer.handle.id, from += sizeof(offer.handle.bytes), sizeof(offer.handle.id));
  std::memcpy(&offer.offset, from += sizeof(offer.handle.id), sizeof(offer.offset));
  return offer;
}

// --- what is open -------------------------------------------------------------------------------

util::Result<const std::byte*> PeerMemory::reach(const Offer& offer, const void* near,
                                                 size_t length) noexcept {
  util::Result<const Open*> found = open(offer, near);
  if (!found) return found.error();
  const hmem::IpcMemory& memory = (*found)->memory;
  if (offer.offset > memory.size || length > memory.size - offer.offset) return -FI_EOPNOTSUPP;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's device pointers are numbers
  return reinterpret_cast<const std::byte*>(memory.base + offer.offset);
}

util::Result<const PeerMemory::Open*> PeerMemory::open(const Offer& offer,
                                                       const void* near) noexcept try {
  const auto end = x_open.end();
  // By handle and id: memory that was allocated anew may have the handle of what was there before.
  auto at = std::find_if(x_open.begin(), end,
                         [&](const Open& one) { return one.handle == offer.handle; });
  if (at == end) {
    std::erase_if(x_open, [&](const Open& one) {
      const bool stale = one.handle.same_name(offer.handle);
      if (stale) x_cuda->close(one.handle);
      return stale;
    });
    if (x_open.size() >= kMostOpen) {
      const auto oldest = std::min_element(
          x_open.begin(), x_open.end(),
          [](const Open& one, const Open& other) { return one.used < other.used; });
      x_cuda->close(oldest->handle);
      x_open.erase(oldest);
    }
    x_open.reserve(x_open.size() + 1);
    util::Result<hmem::IpcMemory> memory = x_cuda->open(offer.handle, near);
    if (!memory) return memory.error();
    at = x_open.insert(x_open.end(), {offer.handle, *memory, 0});
  }
  at->used = ++x_uses;
  return static_cast<const Open*>(&*at);
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

void PeerMemory::close() noexcept {
  for (const Open& one : x_open) x_cuda->close(one.handle);
  x_open.clear();
}

// --- copies -------------------------------------------------------------------------------------

OfferedReads::~OfferedReads() {
  for (const Read& read : x_reads) x_cuda->close(read.handle);
}

int OfferedReads::add(const Link& from, const Offer& offer, const std::byte* source,
                      const iovec* memory, size_t count, size_t length, uint64_t token) noexcept
    try {
  Read read{&from, offer.handle, source, {}, count, length, token};
  std::copy_n(memory, count, read.memory);
  x_reads.push_back(read);
  // It is open, so this only counts.
  const util::Result<hmem::IpcMemory> held = x_cuda->open(offer.handle, nullptr);
  if (held) return 0;
  x_reads.pop_back();
  return held.error();
} catch (const std::bad_alloc&) {
  return -FI_EAGAIN;
}

uint64_t OfferedReads::finish(std::deque<Read>::iterator read) noexcept {
  const uint64_t token = read->token;
  x_cuda->close(read->handle);
  x_reads.erase(read);
  return token;
}

int OfferedReads::poll(Sink& sink) noexcept {
  int steps = 0;
  for (size_t budget = kBytesPerPoll; budget > 0 && !x_reads.empty(); ++steps) {
    Read& read = x_reads.front();
    const size_t bytes = std::min(budget, read.length - read.done);
    budget -= bytes;
    int status = step(read, bytes);
    if (status == 0 && read.done < read.length) continue;
    // The bytes are those of the message only if its owner did not have the memory back meanwhile.
    if (status == 0 && read.link->left()) status = -FI_ECANCELED;
    sink.on_done(finish(x_reads.begin()), status);
  }
  return steps;
}

int OfferedReads::step(Read& read, size_t bytes) noexcept {
  int rc = 0;
  hmem::for_each_part(read.memory, read.count, read.done, bytes,
                      [&](std::byte* part, size_t before, size_t length) {
                        const std::byte* const from = read.source + read.done + before;
                        if (!rc) rc = x_cuda->copy(part, from, length);
                      });
  read.done += bytes;
  return rc;
}

void OfferedReads::end(const Link& link, Sink& sink, int status) noexcept {
  const auto ours = [&](const Read& read) { return read.link == &link; };
  for (;;) {  // the upcall may begin others
    const auto at = std::find_if(x_reads.begin(), x_reads.end(), ours);
    if (at == x_reads.end()) return;
    sink.on_done(finish(at), status);
  }
}

}  // namespace erdma::transport::staging
