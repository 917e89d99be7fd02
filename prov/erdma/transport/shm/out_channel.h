#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/bulk.h"
#include "transport/shm/connection.h"
#include "transport/shm/lending.h"
#include "transport/shm/ordering.h"
#include "transport/shm/ring.h"
#include "transport/shm/segment.h"
#include "transport/shm/wake.h"

namespace erdma::transport::shm {

/// A hot ring at the peer, while it is granted.
struct HotOut {
  Segment segment;
  RingSender ring;
};

/// What goes to one peer: rings and bulk memory, all of it the peer's. Kept after the link went
/// down until the next one replaces it, so that a late withdraw() finds its exposure.
struct OutChannel {
  std::shared_ptr<Connection> connection;
  Segment chunk_segment, bulk_segment;
  RingSender cold;
  std::unique_ptr<HotOut> hot;
  uint32_t hot_count = 0;  ///< rings so far: part of what names a packet there
  Borrowing borrowing;
  uint32_t ring = 0;           ///< index of the cold one
  bool to_hot = false;         ///< a switch to the hot ring is due: no room for the entry yet
  bool to_cold = false;        ///< or back
  bool asked_for_hot = false;  ///< before having sent a lot
  bool down = false;
  unsigned bulk_polls = 0;        ///< before bulk_segment was there
  unsigned yields = 0;            ///< by then
  std::unique_ptr<BulkOut> bulk;  ///< after the segments: destroyed first

  ColdChunk& chunk() const noexcept { return chunk_segment.as<ColdChunk>(); }
  ColdControl& control() const noexcept { return chunk().controls[ring]; }
  /// Before any completion says so: from now on the exposed memory may change.
  void announce_end() const noexcept { tell_before_reuse(control().left, 1u); }
};

}  // namespace erdma::transport::shm
