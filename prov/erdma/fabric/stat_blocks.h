#pragma once

#include <cstdint>
#include <span>

#include "transport/counters.h"
#include "util/stat_page.h"

namespace erdma::fabric {

/// The blocks of this version (docs/statistics.md). Each member except `head` is a field of the
/// page.
struct ProcessBlock {
  stat_layout::BlockHead head;
  uint64_t pid;
  uint64_t started;  ///< creation time of the page, nanoseconds since 1970
  uint64_t rank, ranks, local_rank;
  uint64_t left_out;          ///< number of endpoints and peers that got no block
  uint64_t hidden_endpoints;  ///< number of open endpoints that have no block
  /// Bytes that closed endpoints copied from and to peers for which the kernel refused CMA.
  uint64_t shm_refused_bytes;
  char host[64];
  char command[32];
  char launcher[16];
  char job[128];
  char provider[16];
  char libfabric[16];
  /// A pipe: a byte written to it makes the endpoints show what waits. The descriptor is that of
  /// this process; by the inode the writer checks that it has found the pipe.
  uint64_t question_fd, question_inode;
  // Counters of closed endpoints.
  transport::ShmCounters shm;
  transport::NicCounters nic;
  transport::GpuCounters gpu;
};

struct EndpointBlock {
  stat_layout::BlockHead head;
  uint64_t answers;   ///< how often the endpoint showed what waits
  uint64_t answered;  ///< nanoseconds since 1970
  uint64_t any_receives, any_receive_id, any_receive_bytes, any_receive_tag, any_receive_ignore;
  uint64_t any_receive_waited;  ///< see PeerWaitsBlock::send_waited
  uint64_t enabled;             ///< 0: the facts below are not known yet
  uint64_t speed;               ///< bit/s
  char address[80];
  char device[64];
  char other_hosts[80], this_host[80], gpu_memory[80];
  char changed[512];    ///< names of variables, separated by commas
  char settings[1536];  ///< NAME=value of each variable, separated by spaces
  // Counters of transfers whose peer has no block. On cache lines of their own.
  alignas(64) transport::ShmCounters shm;
  alignas(64) transport::NicCounters nic;
  transport::GpuCounters gpu;
};

/// What every peer has. A job has many peers that are silent most of the time, so the rest is in
/// parts, which get memory only when they are needed.
struct PeerBlock {
  stat_layout::BlockHead head;
  uint64_t endpoint;  ///< index of the endpoint's block
  uint64_t since;     ///< nanoseconds since 1970
  char path[8];       ///< self, shm or nic
  char address[72];
  transport::ShmCounters shm;
};

/// The part of a peer that a NIC reaches, or with which GPU memory is exchanged.
struct PeerNicBlock {
  stat_layout::BlockHead head;
  transport::NicCounters nic;
  transport::GpuCounters gpu;
};

/// The part of a peer that an answer has shown (protocol/waits.h).
struct PeerWaitsBlock {
  stat_layout::BlockHead head;
  char link[16];
  char send_kind[16], sends_for[16], matched_for[16];
  uint64_t room;
  uint64_t throttled;
  uint64_t sends, send_id, send_bytes, send_tag;
  uint64_t receives, receive_id, receive_bytes, receive_tag, receive_ignore;
  uint64_t unexpected, unexpected_id, unexpected_bytes, unexpected_tag;
  uint64_t matched, matched_id, matched_bytes, matched_tag;
  /// Nanoseconds from the first answer that showed the oldest operation to the last answer.
  uint64_t send_waited, receive_waited, unexpected_waited, matched_waited;
};

enum StatKindIndex : uint16_t {
  kProcessKind,
  kEndpointKind,
  kPeerKind,
  kPeerNicKind,
  kPeerWaitsKind
};

extern const std::span<const util::StatKind> kStatKinds;
extern const std::span<const util::StatField> kStatFields;

}  // namespace erdma::fabric
