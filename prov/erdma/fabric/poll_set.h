#pragma once

#include <cstddef>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "fabric/fid_ops.h"
#include "fabric/idle_reads.h"

namespace erdma::fabric {

class Domain;

/// One poll set: completion queues, counters and event queues that fi_poll(3) polls together. Its
/// calls take the domain lock. Invariant: fi_close of a member returns -FI_EBUSY.
class PollSet final : public FidObject<PollSet, fid_poll> {
 public:
  explicit PollSet(Domain& domain) noexcept;

  /// -FI_EALREADY: the object is in the set. -FI_EINVAL: it belongs to another domain, or can't be
  /// polled.
  int add(fid_t object, uint64_t flags);
  /// -FI_EINVAL: the object is not in the set.
  int remove(fid_t object, uint64_t flags) noexcept;
  /// Makes progress on all members. Writes the contexts of up to `count` members that have
  /// something to read, and returns their number. If more have, the next call begins with the
  /// others.
  int poll(void** contexts, int count) noexcept;
  int close() noexcept;

 private:
  Domain& x_domain;
  std::vector<fid_t> x_members;
  size_t x_first = 0;  ///< where the next call begins
  IdleReads x_idle_reads;
};

/// fi_poll_open(3).
int open_poll_set(fid_domain* domain, fi_poll_attr* attr, fid_poll** set) noexcept;

}  // namespace erdma::fabric
