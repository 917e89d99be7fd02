#pragma once

#include <cstdint>

#include <rdma/fi_errno.h>

namespace erdma::util {

/// The one place where a status that a peer reports is judged: 0 or a negative fi_errno as it is,
/// -FI_EIO for anything else.
inline constexpr int peer_status(int64_t said) noexcept {
  constexpr int64_t kLargestErrno = 4095;  // FI_ERRNO_MAX is far below
  return said <= 0 && said >= -kLargestErrno ? int(said) : -FI_EIO;
}

/// The same for the end of a transfer. Those statuses by which a transport tells its own side what
/// to do next are not the peer's to give.
inline constexpr int peer_transfer_status(int64_t said) noexcept {
  const int status = peer_status(said);
  return status == -FI_EAGAIN || status == -FI_EBUSY || status == -FI_EOPNOTSUPP ? -FI_EIO : status;
}

}  // namespace erdma::util
