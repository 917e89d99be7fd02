#pragma once

#include <cstdint>

#include "transport/shm/cma.h"

namespace erdma::transport::shm {

/// What most likely stands behind a refusal.
enum class RefusalCause : uint8_t {
  scope_admin_only,     ///< Yama 2
  scope_nobody,         ///< Yama 3
  scope_ancestor_only,  ///< Yama 1
  invisible_pid,
  wrong_process,
  other_user,
  other_user_namespace,
  not_dumpable,
  seccomp,
  no_such_call,  ///< ENOSYS without a filter
  memory,        ///< EFAULT and the like: permission is not the matter
  capabilities,  ///< EPERM, and nothing else explains it
};

RefusalCause likely_cause(const CmaPeer& peer, const CmaVerdict& verdict,
                          const CmaIdentity& self) noexcept;

/// Does the refusal say something of the host or the job, other than that the peer is ending?
bool lasting(RefusalCause cause, const CmaVerdict& verdict) noexcept;

/// Who refuses: "by ..." or "as ..."; static text.
const char* reason(RefusalCause cause) noexcept;

/// What an administrator can do about it; static text.
const char* remedy(RefusalCause cause) noexcept;

}  // namespace erdma::transport::shm
