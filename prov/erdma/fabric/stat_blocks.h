#pragma once

#include <cstdint>
#include <span>

#include "transport/counters.h"
#include "util/stat_page.h"

namespace erdma::fabric {

/// What this version shows (docs/statistics.md). Each member is a field of the directory, but for
/// the head.
struct ProcessBlock {
  stat_layout::BlockHead head;
  uint64_t pid;
  uint64_t started;  ///< nanoseconds since 1970, of the page
  uint64_t rank, ranks, local_rank;
  uint64_t left_out;  ///< endpoints and peers for which there was no block
  char host[64];
  char command[32];
  char launcher[16];
  char job[128];
  char provider[16];
  char libfabric[16];
  // Of endpoints that were closed.
  transport::ShmCounters shm;
  transport::NicCounters nic;
};

struct EndpointBlock {
  stat_layout::BlockHead head;
  uint64_t enabled;  ///< 0: what follows is not known yet
  uint64_t speed;    ///< bit/s
  char address[80];
  char device[64];
  char other_hosts[80], this_host[80], gpu_memory[80];
  char changed[512];    ///< names of variables, separated by commas
  char settings[1536];  ///< NAME=value of each variable, separated by blanks
  // On cache lines of their own.
  alignas(64) transport::ShmCounters shm;
  alignas(64) transport::NicCounters nic;
};

struct PeerBlock {
  stat_layout::BlockHead head;
  uint64_t endpoint;  ///< index of the block of the endpoint that has it
  uint64_t since;     ///< nanoseconds since 1970
  char path[16];      ///< self, shm or nic
  char address[80];
};

enum StatKindIndex : uint16_t { kProcessKind, kEndpointKind, kPeerKind };

extern const std::span<const util::StatKind> kStatKinds;
extern const std::span<const util::StatField> kStatFields;

}  // namespace erdma::fabric
