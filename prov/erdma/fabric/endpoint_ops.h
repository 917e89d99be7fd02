#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

namespace erdma::fabric {

inline constexpr size_t kInjectBytes = 4096;
inline constexpr size_t kDefaultMinMultiRecv = 64;
inline constexpr size_t kMaxMessageBytes = size_t(std::numeric_limits<ssize_t>::max());

/// Fills a slot of an ops table, whatever its signature.
template <typename Result, typename... Args>
Result not_offered(Args...) noexcept {
  return -FI_ENOSYS;
}

/// The same before fi_enable.
template <typename Result, typename... Args>
Result not_enabled(Args...) noexcept {
  return -FI_EOPBADSTATE;
}

/// The same of receives on an endpoint with a shared receive context.
template <typename Result, typename... Args>
Result not_here(Args...) noexcept {
  return -FI_EOPNOTSUPP;
}

/// fi_query_atomic(3).
int query_atomic(fid_domain* domain, fi_datatype datatype, fi_op op, fi_atomic_attr* attr,
                 uint64_t flags) noexcept;

extern fi_ops g_endpoint_fid_ops;
extern fi_ops_ep g_endpoint_ops;
extern fi_ops_cm g_endpoint_cm_ops;

// Not offered in this version: every call returns -FI_ENOSYS.
extern fi_ops_collective g_no_collective_ops;
// Nor with FI_HMEM.
extern fi_ops_rma g_no_rma_ops;
extern fi_ops_atomic g_no_atomic_ops;

}  // namespace erdma::fabric
