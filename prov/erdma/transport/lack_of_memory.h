#pragma once

#include <rdma/fi_errno.h>

namespace erdma::transport {

/// Says that an operation found no memory since the last poll(). The endpoint must not sleep before
/// the next one, after which the caller tries again: nothing else would wake it for that.
class LackOfMemory {
 public:
  int try_later() noexcept {
    x_felt = true;
    return -FI_EAGAIN;
  }
  void forget() noexcept { x_felt = false; }  ///< at the beginning of poll()
  bool felt() const noexcept { return x_felt; }

 private:
  bool x_felt = false;
};

}  // namespace erdma::transport
