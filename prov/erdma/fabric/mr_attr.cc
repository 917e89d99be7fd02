#include "fabric/mr_attr.h"

#include <algorithm>
#include <cstring>

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "hmem/cuda.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

constexpr uint64_t kAccess = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ |
                             FI_REMOTE_WRITE | FI_MULTICAST | FI_COLLECTIVE;
// Hints that change nothing: for host memory, or because a counter can be bound to any region.
constexpr uint64_t kIgnoredFlags = FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY | FI_RMA_EVENT;

/// FI_MR_DMABUF and struct fi_mr_dmabuf of libfabric 1.20, which are part of the ABI, for builds
/// with older headers.
constexpr uint64_t kMrDmabuf = uint64_t(1) << 40;
struct FileMemory {
  int fd;
  uint64_t offset;  ///< bytes, from the start of the file and from `base`
  size_t length;
  void* base;
};
#ifdef FI_MR_DMABUF
static_assert(kMrDmabuf == FI_MR_DMABUF && sizeof(FileMemory) == sizeof(fi_mr_dmabuf) &&
              offsetof(FileMemory, base) == offsetof(fi_mr_dmabuf, base_addr));
#endif

int check_iov(const iovec* iov, size_t count) noexcept {
  if (!iov || count == 0 || count > transport::kMaxIov) return -FI_EINVAL;
  for (size_t i = 0; i < count; ++i) {
    const auto start = reinterpret_cast<uintptr_t>(iov[i].iov_base);
    if ((!start && iov[i].iov_len) || iov[i].iov_len > UINTPTR_MAX - start) return -FI_EINVAL;
  }
  return 0;
}

}  // namespace

RegionAttributes::RegionAttributes(uint32_t api_version, hmem::Cuda* cuda) noexcept
    : x_has_auth_key(FI_VERSION_GE(api_version, FI_VERSION(1, 5))),
      x_has_interface(FI_VERSION_GE(api_version, FI_VERSION(1, 9))),
      x_has_dmabuf(FI_VERSION_GE(api_version, FI_VERSION(1, 20))),
      x_cuda(cuda) {}

int RegionAttributes::take(const fi_mr_attr& attr, uint64_t flags,
                           NamedMemory& memory) const noexcept {
  if (const int rc = check(attr, flags)) return rc;
  if (flags & kMrDmabuf) {
    if (const int rc = take_dmabuf(attr, memory)) return rc;
  } else if (const int rc = check_iov(attr.mr_iov, attr.iov_count)) {
    return rc;
  } else {
    memory.count = attr.iov_count;
    std::copy_n(attr.mr_iov, memory.count, memory.iov);
  }
  return check_memory(attr, memory);
}

void RegionAttributes::make_synchronous(const NamedMemory& memory) const noexcept {
  hmem::Allocation found;
  for (size_t i = 0; i < memory.count; ++i)
    if (x_cuda->allocation(memory.iov[i].iov_base, found)) x_cuda->make_synchronous(found);
}

int RegionAttributes::check(const fi_mr_attr& attr, uint64_t flags) const noexcept {
  if (flags & ~(kIgnoredFlags | (x_has_dmabuf ? kMrDmabuf : 0))) return -FI_EBADFLAGS;
  if (attr.access & ~kAccess || attr.offset) return -FI_EINVAL;
  return x_has_auth_key && attr.auth_key_size ? -FI_EOPNOTSUPP : 0;
}

int RegionAttributes::take_dmabuf(const fi_mr_attr& attr, NamedMemory& memory) const noexcept {
  if (!x_cuda || attr.iface != FI_HMEM_CUDA) {
    ERDMA_WARN(MR,
               "a dmabuf can be registered of FI_HMEM_CUDA only, on a domain opened with "
               "FI_HMEM\n");
    return -FI_EOPNOTSUPP;
  }
  FileMemory named{};
  if (!attr.mr_iov || attr.iov_count != 1) return -FI_EINVAL;
  std::memcpy(&named, attr.mr_iov, sizeof(named));
  if (named.fd < 0 || !named.base || named.length == 0) return -FI_EINVAL;
  memory.iov[0] = {static_cast<std::byte*>(named.base) + named.offset, named.length};
  memory.count = 1;
  memory.in_file = true;
  memory.file = {named.fd, named.offset};
  return check_iov(memory.iov, 1);
}

/// Finds out whether the memory is device memory. The driver decides, whatever `attr.iface` says.
int RegionAttributes::check_memory(const fi_mr_attr& attr, NamedMemory& memory) const noexcept {
  const fi_hmem_iface iface = x_has_interface ? attr.iface : FI_HMEM_SYSTEM;
  if (iface != FI_HMEM_SYSTEM && (iface != FI_HMEM_CUDA || !x_cuda)) {
    ERDMA_WARN(MR,
               "memory of this interface can't be registered: iface must be FI_HMEM_SYSTEM or, "
               "on a domain opened with FI_HMEM, FI_HMEM_CUDA\n");
    return -FI_ENOSYS;
  }
  if (!x_cuda) return 0;
  for (size_t i = 0; i < memory.count; ++i) {
    const iovec& part = memory.iov[i];
    const bool on_gpu = x_cuda->is_device(part.iov_base);
    const bool covered = !on_gpu || x_cuda->covers(part.iov_base, part.iov_len);
    const bool as_told = on_gpu || iface != FI_HMEM_CUDA;
    if (const int error = covered && as_told ? 0 : x_cuda->error_at(part.iov_base)) {
      ERDMA_NOTICE(gpu_refused, MR,
                   "memory can't be registered: CUDA can't tell what it is (CUDA error %d); a "
                   "kernel or an earlier call of CUDA failed",
                   error);
      return -FI_EIO;
    }
    if (!covered) {
      ERDMA_WARN(MR, "a region is longer than the GPU memory it begins in\n");
      return -FI_EINVAL;
    }
    if (!as_told) {
      ERDMA_WARN(MR, "memory was registered as FI_HMEM_CUDA, but it is not memory of a GPU\n");
      return -FI_EINVAL;
    }
    memory.device |= on_gpu;
  }
  return 0;
}

}  // namespace erdma::fabric
