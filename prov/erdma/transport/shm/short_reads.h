#pragma once

#include <cstddef>

#include "transport/shm/bulk_shared.h"
#include "transport/shm/core_sharing.h"
#include "util/clock.h"

namespace erdma::transport::shm {

/// Reads short messages from their sender's memory, each by one call and at once: a ticket would
/// take as long as a fifth of the message, and the half that a sender could move is not worth its
/// call. Does nothing that could not be done again by a transfer.
class ShortReads {
 public:
  ShortReads(void* shared, BulkMemory& memory, CmaCalls& calls, CmaPeer& sender,
             const Options& options, const CoreSharing& core, Counters& counters,
             const util::Clock& clock) noexcept
      : x_page(shared_page(shared)),
        x_memory(memory),
        x_calls(calls),
        x_peer(sender),
        x_paths(options.paths),
        x_core(core),
        x_counters(counters),
        x_clock(clock) {}

  static constexpr size_t kLongest = size_t{32} * 1024;
  /// Where the core is shared: the receiver moves all bytes there, and what a transfer touches has
  /// left the caches since its last turn.
  static constexpr size_t kLongestOnSharedCore = kMaxChunk;
  size_t longest() const noexcept { return x_core.shared() ? kLongestOnSharedCore : kLongest; }
  /// kDone, or -FI_EAGAIN: a transfer must move the bytes, or find out why that is not possible.
  int read(const SharedMemory& remote, const iovec* local, size_t count, size_t length) noexcept;

 private:
  bool valid(const SharedMemory& remote) const noexcept;

  BulkShared& x_page;
  BulkMemory& x_memory;
  CmaCalls& x_calls;
  CmaPeer& x_peer;
  const PathPolicy x_paths;
  const CoreSharing& x_core;
  Counters& x_counters;
  const util::Clock& x_clock;
};

}  // namespace erdma::transport::shm
