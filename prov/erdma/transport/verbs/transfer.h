#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/shared_memory.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

namespace erdma::transport::verbs {

class Transfers;

/// A get() or put() of this side in progress on one connection. It is in exactly one of its
/// connection's lists (`moving` while there is something to post or to ask for, then `waiting`).
/// Invariant: it ends in one on_done(), once no part of it is in flight.
struct Transfer : util::ListHook<Transfer> {
  Transfers* owner = nullptr;
  uint64_t token = 0;
  bool is_read = false;
  /// Local memory cannot be registered: it moves through blocks of the transport.
  bool bounces = false;
  bool requested = false;  ///< bounced read: the pull is sent
  bool proof_due = false;  ///< write: must end with a READ, which proves that it is placed
  int status = 0;
  unsigned in_flight = 0;  ///< work requests
  iovec local[kMaxIov];
  Registration registrations[kMaxIov];
  size_t count = 0;
  uint64_t length = 0;
  uint64_t posted = 0;  ///< bytes
  uint64_t moved = 0;   ///< bytes; bounced transfers
  RemoteMemory remote;

  bool all_posted() const noexcept { return posted == length && !proof_due; }
};

/// Bounced memory of this side on its way to a peer that asked for it.
struct Stream : util::ListHook<Stream> {
  util::PoolHandle shared;
  util::PoolHandle requester;
  uint64_t next = 0;
  uint64_t length = 0;
};

/// Tells the peer that its transfer through packets is over.
struct Answer : util::ListHook<Answer> {
  util::PoolHandle requester;
  int status = 0;
};

}  // namespace erdma::transport::verbs
