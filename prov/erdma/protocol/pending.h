#pragma once

#include <rdma/fi_errno.h>

#include "util/intrusive_list.h"

namespace erdma::protocol {

/// An operation that needs room on its peer's link. It is in at most one list of its peer.
class Pending : public util::ListHook<Pending> {
 public:
  /// 0: it is under way, or over. -FI_EAGAIN: nothing happened, the link has no room. Else it can't
  /// be done, and finish() is to follow.
  virtual int start() noexcept = 0;
  /// Ends it, and tells whoever waits for it.
  virtual void finish(int status) noexcept = 0;

 protected:
  ~Pending() = default;
};

template <typename Operation>
using PendingList = util::IntrusiveList<Operation, Pending>;

/// Starts what waits for room, in order. False: the link is full again.
template <typename Operation>
bool start_all(PendingList<Operation>& waiting) noexcept {
  while (Operation* next = waiting.front()) {
    waiting.erase(*next);
    const int rc = next->start();
    if (rc == -FI_EAGAIN) {
      waiting.push_front(*next);
      return false;
    }
    if (rc != 0) next->finish(rc);
  }
  return true;
}

}  // namespace erdma::protocol
