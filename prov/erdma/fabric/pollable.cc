#include "fabric/pollable.h"

#include "fabric/domain.h"

namespace erdma::fabric {

QueueParent parent_in(fid_domain* fid) {
  Domain& domain = Domain::from(fid);
  return {domain.lock(), domain.api_version(), domain.auto_progress() != nullptr,
          [&domain] { domain.child_closed(); }};
}

void opened_in(fid_domain* fid) noexcept {
  Domain::from(fid).child_opened();
}

}  // namespace erdma::fabric
