#include "transport/verbs/gpu_memory.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <rdma/fi_errno.h>

#include "hmem/cuda.h"
#include "transport/verbs/newer_rdma_core.h"
#include "transport/verbs/open_region.h"
#include "transport/verbs/registration_cache.h"
#include "util/error_text.h"
#include "util/fd.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// These errors mean that the way does not exist.
bool absent(int error) noexcept {
  return error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS;
}
/// These errors mean that the way does not exist or cannot take this memory; others, that it failed
/// this time.
bool never(int error) noexcept {
  return absent(error) || error == EFAULT || error == EINVAL || error == EMSGSIZE;
}

/// ENOSYS: rdma-core before 34 lacks the function; drivers return EOPNOTSUPP.
ibv_mr* reg_dmabuf(ibv_pd* pd, const iovec& memory, const Dmabuf& file, int access) noexcept {
#ifdef HAVE_IBV_REG_DMABUF_MR
  auto* const call = &ibv_reg_dmabuf_mr;
#else
  static auto* const call =
      of_newer_rdma_core<ibv_mr*(ibv_pd*, uint64_t, size_t, uint64_t, int, int)>(
          "ibv_reg_dmabuf_mr");
  if (!call) {
    errno = ENOSYS;
    return nullptr;
  }
#endif
  return call(pd, file.offset, memory.iov_len, reinterpret_cast<uint64_t>(memory.iov_base), file.fd,
              access);
}

MemoryRegion as_dmabuf(const Device& device, const iovec& memory, const Dmabuf& file, int access,
                       int& error) noexcept {
  MemoryRegion region(reg_dmabuf(device.pd(), memory, file, access));
  error = region ? 0 : errno;
  return region;
}

/// Exports the allocation that holds the memory.
MemoryRegion as_exported(const Device& device, hmem::Cuda& cuda, const iovec& memory, int access,
                         int& error) noexcept {
  hmem::Allocation allocation;
  uint64_t offset = 0;
  error = EAGAIN;
  if (!cuda.allocation(memory.iov_base, allocation)) return nullptr;
  const size_t before = hmem::cuda_api::address_of(memory.iov_base) - allocation.base;
  // Adjacent mappings are exported as one.
  allocation.size = std::max(allocation.size, before + memory.iov_len);
  util::Result<util::Fd> file = cuda.export_dmabuf(allocation, offset);
  error = -file.error();
  if (!file) return nullptr;
  offset += before;
  return as_dmabuf(device, memory, {file->get(), offset}, access, error);
}

}  // namespace

bool needs_flush(FlushPolicy policy, const hmem::Cuda& cuda, const void* memory) noexcept {
  return policy == FlushPolicy::always ||
         (policy == FlushPolicy::automatic && !cuda.orders_nic_writes(memory));
}

bool GpuRefusal::final() const noexcept {
  return never(as_dmabuf) && never(by_address);
}

/// By its address, memory is refused with the same errors whether or not nvidia-peermem is loaded.
/// But the module is, if it took other memory.
bool GpuRefusal::for_all() const noexcept {
  return absent(as_dmabuf) && never(by_address) && !pins_others;
}

int GpuRefusal::want_of_room() const noexcept {
  for (const int error : {as_dmabuf, by_address})
    if (for_want_of_room(error) && !never(error) && error != 0 && error != EAGAIN) return error;
  return 0;
}

const char* GpuRefusal::remedy() const noexcept {
  if (by_address == EMSGSIZE)
    return "It is more than the NIC registers at once: register several shorter regions";
  if (for_all()) return kNoWayRemedy;
  return final() ? "Memory of cudaMalloc can be registered, but no managed memory, and no memory "
                   "of a pool or of another process"
                 : "It is tried again the next time";
}

MemoryRegion register_gpu_memory(const Device& device, hmem::Cuda& cuda, const iovec& memory,
                                 const Dmabuf* file, int access, GpuRefusal& why) noexcept {
  if (memory.iov_len > device.limits().max_region) {
    why.as_dmabuf = why.by_address = EMSGSIZE;
    return nullptr;
  }
  if (!file && cuda.is_managed(memory.iov_base)) {
    why.as_dmabuf = why.by_address = EINVAL;  // the address would be registered, as host memory
    return nullptr;
  }
  MemoryRegion region = file ? as_dmabuf(device, memory, *file, access, why.as_dmabuf)
                             : as_exported(device, cuda, memory, access, why.as_dmabuf);
  if (region) return region;
  region.reset(ibv_reg_mr(device.pd(), memory.iov_base, memory.iov_len, access));
  why.by_address = errno;
  const int gpu = cuda.gpu_of(memory.iov_base);
  if (region)
    device.pins_gpu(gpu);
  else
    why.pins_others = device.has_pinned_gpu(gpu);
  return region;
}

MemoryRegion register_gpu_region(const Device& device, hmem::Cuda& cuda, const iovec& memory,
                                 const Dmabuf* file, int access, GpuRefusal& why) noexcept {
  for (;;) {
    MemoryRegion region = register_gpu_memory(device, cuda, memory, file, access, why);
    const int error = region ? 0 : why.want_of_room();
    if (!error || !device.ask_for_room(error)) return region;
  }
}

util::Result<std::unique_ptr<RegisteredRegion>> GpuMemoryRegistrar::open(const iovec& memory,
                                                                         const Dmabuf* file,
                                                                         bool for_reads,
                                                                         bool for_writes) {
  const size_t most = x_device.limits().max_region;
  if (memory.iov_len > most) {
    ERDMA_NOTICE(gpu_staged, MR,
                 "a region of %zu bytes of GPU memory is more than %s registers at once (%zu), so "
                 "RMA there is copied through host memory, if it is possible at all. Register "
                 "several shorter regions",
                 memory.iov_len, x_device.name().c_str(), most);
    return -FI_EOPNOTSUPP;
  }
  const int access = peer_rights(for_reads, for_writes);
  GpuRefusal why;
  MemoryRegion region = register_gpu_region(x_device, x_cuda, memory, file, access, why);
  if (region)
    return std::unique_ptr<RegisteredRegion>(
        std::make_unique<VerbsRegion>(std::move(region), memory));
  ERDMA_NOTICE(gpu_staged, MR,
               "%zu bytes of GPU memory can't be registered with %s for RMA (as a dmabuf: %s; by "
               "their address: %s), so RMA there is copied through host memory, if it is possible "
               "at all. %s",
               memory.iov_len, x_device.name().c_str(), util::ErrorText(why.as_dmabuf).c_str(),
               util::ErrorText(why.by_address).c_str(), why.remedy());
  return why.final() ? -FI_EOPNOTSUPP : -FI_ENOMEM;
}

}  // namespace erdma::transport::verbs
