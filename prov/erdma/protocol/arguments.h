#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include <rdma/fabric.h>

#include "protocol/completion.h"
#include "protocol/regions.h"
#include "protocol/wire.h"
#include "util/socket_address.h"

namespace erdma::hmem {
class DeviceMemory;
}

/// What callers ask of an engine. What is to be received is in receive_queues.h.
namespace erdma::protocol {

class WaitsSink;

struct EngineConfig {
  size_t inject_size;                           ///< largest SendArgs::length with inject
  size_t unexpected_bytes;                      ///< budget per peer
  uint32_t send_limit;                          ///< sends in flight before -FI_EAGAIN
  hmem::DeviceMemory* device_memory = nullptr;  ///< places messages there; null: there is none
  WaitsSink* waits = nullptr;                   ///< hears of what waits; outlives the engine
};

/// All 12 flavours of sending a message.
struct SendArgs {
  uint64_t destination;  ///< fi_addr_t
  const iovec* iov;
  size_t count;   ///< at most transport::kMaxIov
  size_t length;  ///< sum of the iov
  uint64_t tag;
  uint64_t data;
  void* context;
  bool tagged;
  bool has_data;
  bool inject;           ///< memory is the caller's again on return
  bool report;           ///< write a CQ entry
  bool until_delivered;  ///< FI_DELIVERY_COMPLETE
  bool fence;
  bool more;

  uint8_t wire_flags() const noexcept {
    return uint8_t((tagged ? wire::kTagged : 0) | (has_data ? wire::kHasData : 0));
  }
  uint64_t completion_flags() const noexcept { return FI_SEND | (tagged ? FI_TAGGED : FI_MSG); }
  /// A copy, member by member from where each is: a copy as a whole would read wide what was
  /// written narrow just now, and so wait for every store before it, those to other cores too.
  SendArgs by_member() const noexcept {
    return {destination, iov,    count,  length,          tag,   data, context, tagged,
            has_data,    inject, report, until_delivered, fence, more};
  }
};

/// Bytes of the operands of one atomic operation.
inline constexpr size_t kMaxAtomicBytes = 4096;

/// Where completions of one-sided operations go, and what peers may access.
struct OneSidedSetup {
  const util::SocketAddress& name;  ///< of the endpoint itself
  Regions& regions;
  CompletionSink& reads;          ///< of our reads and fetching atomics
  CompletionSink& writes;         ///< of our writes and other atomics
  CompletionSink& remote_reads;   ///< of the peers' reads here: counted
  CompletionSink& remote_writes;  ///< of the peers' writes here: counted, reported with CQ data
};

/// All flavours of RMA and of atomic operations.
struct OneSidedArgs {
  SendArgs local;  ///< `iov`: to write from, to read into, for results; its tag means nothing
  wire::Op op;     ///< write, read, atomic
  const wire::Segment* segments;
  size_t segment_count;  ///< at most transport::kMaxIov; as many bytes as `local`, or as operands
  bool device;           ///< some of `local` is not host memory

  // Atomics only.
  wire::AtomicWord word;  ///< `count` unset
  uint8_t flags;          ///< wire::kFetch, wire::kCompare
  size_t element;         ///< bytes
  size_t count;           ///< elements: at most kMaxAtomicBytes
  const iovec* operands;
  size_t operand_count;  ///< 0 for FI_ATOMIC_READ
  const iovec* compares;
  size_t compare_count;
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
