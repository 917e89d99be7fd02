#pragma once

#include <cstdint>
#include <new>
#include <vector>

#include <rdma/fi_errno.h>

#include "transport/transport.h"

namespace erdma::transport {

/// Operations that ended outside poll(). Their on_done() follows in the next poll(), because no
/// other function of a transport may make upcalls.
class DeferredDones {
 public:
  /// 0, or -FI_EAGAIN without memory for the entry.
  int add(uint64_t token, int status) noexcept try {
    x_dones.push_back({token, status});
    return 0;
  } catch (const std::bad_alloc&) {
    return -FI_EAGAIN;
  }
  bool empty() const noexcept { return x_dones.empty(); }
  /// Reports the operations that were added before this call; the upcalls may add more. Returns
  /// their number.
  int report(Sink& sink) noexcept {
    x_due.swap(x_dones);
    for (const Done& done : x_due) sink.on_done(done.token, done.status);
    const int count = int(x_due.size());
    x_due.clear();
    return count;
  }

 private:
  struct Done {
    uint64_t token;
    int status;
  };
  std::vector<Done> x_dones, x_due;  ///< added; being reported
};

}  // namespace erdma::transport
