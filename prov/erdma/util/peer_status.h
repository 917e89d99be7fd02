#pragma once

#include <cstdint>

#include <rdma/fi_errno.h>

namespace erdma::util {

/// The only function that validates a status reported by a peer. It returns 0 or a negative
/// fi_errno unchanged, and -FI_EIO for any other number.
inline constexpr int peer_status(int64_t said) noexcept {
  constexpr int64_t kLargestErrno = 4095;  // FI_ERRNO_MAX is far below
  return said <= 0 && said >= -kLargestErrno ? int(said) : -FI_EIO;
}

/// The same for the status of a transfer. It returns -FI_EIO also for the statuses that a transport
/// uses internally to say what to do next, which a peer must not send.
inline constexpr int peer_transfer_status(int64_t said) noexcept {
  const int status = peer_status(said);
  return status == -FI_EAGAIN || status == -FI_EBUSY || status == -FI_EOPNOTSUPP ? -FI_EIO : status;
}

}  // namespace erdma::util
