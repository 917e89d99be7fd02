#pragma once

#include <cstdint>

#include "transport/shm/cma.h"

namespace erdma::transport::shm {

/// The most likely cause of a refusal.
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
  memory,        ///< EFAULT and the like: permission is not the problem
  capabilities,  ///< EPERM with no other explanation
};

RefusalCause likely_cause(const CmaPeer& peer, const CmaVerdict& verdict,
                          const CmaIdentity& self) noexcept;

/// True if the refusal says something about the host or the job. False if the peer is only ending.
bool lasting(RefusalCause cause, const CmaVerdict& verdict) noexcept;

/// What refuses the call: "by ..." or "as ..."; static text.
const char* reason(RefusalCause cause) noexcept;

/// What an administrator can do; static text.
const char* remedy(RefusalCause cause) noexcept;

}  // namespace erdma::transport::shm
