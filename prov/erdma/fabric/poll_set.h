#pragma once

#include <cstddef>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "fabric/fid_ops.h"
#include "fabric/wait.h"

namespace erdma::fabric {

class Domain;

/// One poll set: completion queues, counters and event queues that fi_poll(3) looks after together.
/// Takes the domain lock. Invariant: its members outlive their membership; their fi_close is
/// -FI_EBUSY until then.
class PollSet final : public FidObject<PollSet, fid_poll> {
 public:
  explicit PollSet(Domain& domain) noexcept;

  /// -FI_EALREADY: it is in the set. -FI_EINVAL: of another domain, or nothing that has events.
  int add(fid_t object, uint64_t flags);
  /// -FI_EINVAL: it is not in the set.
  int remove(fid_t object, uint64_t flags) noexcept;
  /// Drives all members; the contexts of up to `count` that have something to read. Where there are
  /// more, the next call begins with those that were left out.
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
