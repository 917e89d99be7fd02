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
#include <rdma/fi_tagged.h>

#include "fabric/fid_ops.h"

namespace erdma::fabric {

inline constexpr size_t kInjectBytes = 4096;
inline constexpr size_t kDefaultMinMultiRecv = 64;
inline constexpr size_t kMaxMessageBytes = size_t(std::numeric_limits<ssize_t>::max());

/// fi_query_atomic(3).
int query_atomic(fid_domain* domain, fi_datatype datatype, fi_op op, fi_atomic_attr* attr,
                 uint64_t flags) noexcept;

/// A table of entry points that all return kError.
template <typename Ops, int kError = -FI_ENOSYS>
inline Ops g_refusing_ops = refusing<Ops, kError>();

extern fi_ops_ep g_endpoint_ops, g_alias_ops, g_shared_receive_ops;
extern fi_ops_cm g_endpoint_cm_ops, g_alias_cm_ops;

/// The kind of enabled object that data entry points are called on.
struct CallsOn {
  bool alias;
  bool any_memory;       ///< FI_HMEM
  bool shared_receives;  ///< receives are posted to a shared context
};
fi_ops_msg* message_ops(const CallsOn& what) noexcept;
fi_ops_tagged* tagged_ops(const CallsOn& what) noexcept;
fi_ops_rma* rma_ops(const CallsOn& what) noexcept;
fi_ops_atomic* atomic_ops(const CallsOn& what) noexcept;
/// Refuses everything except the queries (fi_atomicvalid(3)), which need no enabled endpoint.
extern fi_ops_atomic g_atomic_ops_disabled;
/// Installs the entry points before fi_enable: they return -FI_EOPBADSTATE. `atomics`: the endpoint
/// will have atomic operations.
void refuse_calls(fid_ep& ep, bool atomics) noexcept;
/// Installs the entry points of an enabled endpoint.
void install_calls(fid_ep& ep, const CallsOn& on) noexcept;

// Entry points of a shared receive context.
extern fi_ops_msg g_shared_message_ops;
extern fi_ops_tagged g_shared_tagged_ops;

}  // namespace erdma::fabric
