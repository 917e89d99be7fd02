#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include <rdma/fabric.h>

#include "protocol/completion.h"
#include "protocol/regions.h"
#include "protocol/wire.h"
#include "util/clock.h"
#include "util/socket_address.h"

namespace erdma::hmem {
class DeviceMemory;
}

/// The arguments of an engine's operations. Those of a receive are in receive_queues.h.
namespace erdma::protocol {

class WaitsSink;

struct EngineConfig {
  size_t inject_size;                           ///< largest SendArgs::length with inject
  size_t unexpected_bytes;                      ///< budget for unexpected messages, per peer
  uint32_t send_limit;                          ///< sends in flight before -FI_EAGAIN
  hmem::DeviceMemory* device_memory = nullptr;  ///< null: all memory is host memory
  WaitsSink* waits = nullptr;          ///< receives the reports of waits.h; outlives the engine
  bool loss_fails_all = false;         ///< a lost peer ends receives from any source, too
  const util::Clock* clock = nullptr;  ///< null: CycleClock
};

/// The arguments of all twelve functions that send a message.
struct SendArgs {
  uint64_t destination;  ///< fi_addr_t
  const iovec* iov;
  size_t count;   ///< at most transport::kMaxIov
  size_t length;  ///< bytes: the sum of the iov
  uint64_t tag;
  uint64_t data;
  void* context;
  bool tagged;
  bool has_data;
  bool inject;           ///< the caller may reuse its memory on return
  bool report;           ///< write a CQ entry
  bool until_delivered;  ///< FI_DELIVERY_COMPLETE
  bool fence;
  bool more;

  uint8_t wire_flags() const noexcept {
    return uint8_t((tagged ? wire::kTagged : 0) | (has_data ? wire::kHasData : 0));
  }
  uint64_t completion_flags() const noexcept { return FI_SEND | (tagged ? FI_TAGGED : FI_MSG); }
  /// Copies member by member. A copy of the whole struct would use wide loads over narrow stores
  /// that have just been made. It would wait until the store buffer is empty, including stores to
  /// lines of other cores.
  SendArgs by_member() const noexcept {
    return {destination, iov,    count,  length,          tag,   data, context, tagged,
            has_data,    inject, report, until_delivered, fence, more};
  }
};

/// Most bytes of operands of one atomic operation.
inline constexpr size_t kMaxAtomicBytes = 4096;

/// Where one-sided operations complete, and which regions peers may access.
struct OneSidedSetup {
  const util::SocketAddress& name;  ///< this endpoint's own address
  Regions& regions;
  CompletionSink& reads;          ///< reads and fetching atomics of this endpoint
  CompletionSink& writes;         ///< writes and other atomics of this endpoint
  CompletionSink& remote_reads;   ///< the peers' reads of memory here: counted
  CompletionSink& remote_writes;  ///< the peers' writes: counted, and reported if with CQ data
};

/// The arguments of all functions for RMA and atomic operations.
struct OneSidedArgs {
  SendArgs local;  ///< `iov`: source of a write, target of a read, results; the tag is not used
  wire::Op op;     ///< write, read, atomic
  const wire::Segment* segments;
  size_t segment_count;  ///< at most transport::kMaxIov; as many bytes as `local`, or as operands
  bool device;           ///< part of `local` is device memory

  // Atomics only.
  wire::AtomicWord word;  ///< `count` is not set
  uint8_t flags;          ///< wire::kFetch, wire::kCompare
  size_t element;         ///< bytes
  size_t count;           ///< elements: at most kMaxAtomicBytes
  const iovec* operands;
  size_t operand_count;  ///< 0 for FI_ATOMIC_READ
  const iovec* compares;
  size_t compare_count;
  bool inject_operands;  ///< FI_INJECT: operands may change on return, also of a deferred operation
};

/// An RMA operation that the fast path can take.
struct AccessArgs {
  uint64_t destination;  ///< fi_addr_t
  void* local;
  size_t length;
  uint64_t address, key;
  void* context;
  bool reads;
  bool report;  ///< write a CQ entry
  bool inject;
};

}  // namespace erdma::protocol
