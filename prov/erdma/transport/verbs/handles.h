#pragma once

#include <cerrno>
#include <cstdlib>
#include <memory>

#include <infiniband/verbs.h>
#include <rdma/fi_errno.h>
#include <rdma/rdma_cma.h>

namespace erdma::transport::verbs {

/// Logs a failed destruction, about which the caller can do nothing else.
void log_leak(const char* what, int error) noexcept;

template <auto Destroy>
struct Deleter {
  template <typename T>
  void operator()(T* object) const noexcept {
    if (const int rc = Destroy(object)) log_leak("a verbs object", std::abs(rc));
  }
};

// Owners of verbs objects, the size of a pointer. Declare members in order of acquisition.
using Context = std::unique_ptr<ibv_context, Deleter<ibv_close_device>>;
using ProtectionDomain = std::unique_ptr<ibv_pd, Deleter<ibv_dealloc_pd>>;
using MemoryRegion = std::unique_ptr<ibv_mr, Deleter<ibv_dereg_mr>>;
using CompletionChannel = std::unique_ptr<ibv_comp_channel, Deleter<ibv_destroy_comp_channel>>;
using CompletionQueue = std::unique_ptr<ibv_cq, Deleter<ibv_destroy_cq>>;
using QueuePair = std::unique_ptr<ibv_qp, Deleter<ibv_destroy_qp>>;

struct DeviceListDeleter {
  void operator()(ibv_device** list) const noexcept { ibv_free_device_list(list); }
};
using DeviceList = std::unique_ptr<ibv_device*, DeviceListDeleter>;

/// The fi_errno that the application gets for a failed request.
int completion_error(ibv_wc_status status) noexcept;

/// Converts return codes of ibv_post_*: a positive errno by the manual, negative from erdma and
/// siw. A full queue is -FI_EAGAIN.
inline int post_error(int rc) noexcept {
  const int error = std::abs(rc);
  return error == ENOMEM ? -FI_EAGAIN : -error;
}

}  // namespace erdma::transport::verbs
