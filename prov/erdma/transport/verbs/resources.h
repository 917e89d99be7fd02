#pragma once

#include <cstdint>

#include "transport/verbs/block_pool.h"
#include "transport/verbs/completion_queues.h"
#include "transport/verbs/connection_table.h"
#include "transport/verbs/device.h"
#include "transport/verbs/open_region.h"
#include "transport/verbs/options.h"
#include "transport/verbs/receive_queue.h"
#include "transport/verbs/refused_size.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/send_queue.h"
#include "transport/verbs/shared_memory.h"
#include "transport/verbs/transfer.h"
#include "util/pool.h"

namespace erdma::transport::verbs {

/// Eight bytes that every peer may READ, and the sink of this side's READs of the same kind.
struct ScratchMemory {
  uint64_t target_address = 0;  ///< a `ready` packet; its eight bytes are what peers READ
  uint32_t target_lkey = 0, target_rkey = 0;
  uint64_t buffer_address = 0;  ///< the sink, which is never read
  uint32_t buffer_lkey = 0;
};

/// What the connections of one endpoint share. Polling thread only, except for the completion
/// queues, the table, and members that never change after open().
struct Resources {
  /// `spare_ids`: connections that may exist beyond twice the number that the options allow.
  Resources(const Options& options, const Device& device, RegistrationCache& cache,
            uint32_t spare_ids);
  /// Makes the completion channel, and the memory for heartbeats.
  [[nodiscard]] int open() noexcept;

  /// Blocks for transfers whose memory cannot be registered: for READs, or for WRITEs.
  BlockPool& bounce_blocks(bool reads) noexcept { return reads ? bounce_sinks : bounce_packets; }
  bool may_grow() const noexcept { return grown < kMostGrown; }

  const Device& device;
  const Options options;  ///< limited to what the device can do
  RegistrationCache& cache;
  HostRegistrar registrar{device, cache};
  const unsigned reads_in_flight;  ///< per connection
  CompletionQueues queues;
  ConnectionTable table;
  uint64_t polls = 0;
  Counters own_counters;
  Counters& counters = options.counters ? *options.counters : own_counters;
  Counters& counters_of(const util::SocketAddress& peer) noexcept {
    return options.by_peer ? options.by_peer->nic_counters_of(peer) : counters;
  }
  Counters all_counters() const noexcept {
    return options.by_peer ? options.by_peer->all_nic_counters() : counters;
  }
  Chain chain;
  BlockPool packet_blocks;
  BlockPool bounce_packets, bounce_sinks;
  ScratchMemory heartbeat;
  util::Pool<Transfer> transfers;
  util::Pool<SharedMemory> shared_memory;
  util::Pool<Stream> streams;
  util::Pool<Answer> answers;
  ReceiveRegions receive_regions{device};
  unsigned grown = 0;          ///< connections with large receives, of about half a megabyte each
  RefusedSize large_receives;  ///< its uses are packets whose senders would use more

 private:
  static constexpr unsigned kMostGrown = 64;

  OwnMemory x_target, x_scratch;
};

}  // namespace erdma::transport::verbs
