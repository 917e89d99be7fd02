#include "transport/verbs/gpu_registrations.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/cuda.h"
#include "transport/verbs/exposure.h"
#include "util/error_text.h"
#include "util/fd.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// Sources only. Nothing of relaxed ordering: whoever flushes by reading counts on the order.
constexpr int kAccess = IBV_ACCESS_REMOTE_READ;

/// Added to Registration::entry of ours, which tells it from those of the other cache.
constexpr uintptr_t kOurs = 1;

void* mark(GpuRegion& region) noexcept {
  return reinterpret_cast<std::byte*>(&region) + kOurs;
}

/// Null: of the other cache.
GpuRegion* marked(void* entry) noexcept {
  if (!(reinterpret_cast<uintptr_t>(entry) & kOurs)) return nullptr;
  return reinterpret_cast<GpuRegion*>(static_cast<std::byte*>(entry) - kOurs);
}

/// These say that there is no such way, others that it failed this time.
bool never(int error) noexcept {
  return error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == EFAULT || error == EINVAL ||
         error == ENOSYS;
}

}  // namespace

GpuRegistrations::GpuRegistrations(const Device& device, hmem::Cuda& cuda,
                                   std::unique_ptr<RegistrationCache> host,
                                   size_t max_idle) noexcept
    : x_device(device), x_cuda(cuda), x_host(std::move(host)), x_max_idle(max_idle) {}

GpuRegistrations::~GpuRegistrations() {
  for (auto* list : {&x_idle, &x_held})
    while (GpuRegion* region = list->pop_front()) delete region;
}

int GpuRegistrations::acquire(const void* address, size_t length,
                              Registration& registration) noexcept try {
  hmem::Allocation allocation;
  if (!x_cuda.is_device(address)) return x_host->acquire(address, length, registration);
  if (!x_cuda.allocation(address, allocation)) return -FI_EOPNOTSUPP;
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - allocation.base;
  if (offset > allocation.size || length > allocation.size - offset) return -FI_EINVAL;
  std::lock_guard guard(x_mutex);
  GpuRegion* region = find(allocation);
  if (!region) region = make(allocation);
  if (!region) return x_refused ? -FI_EOPNOTSUPP : -FI_ENOMEM;
  if (region->users++ == 0) {
    if (region->linked()) {
      x_idle.erase(*region);
      --x_idle_count;
    }
    x_held.push_back(*region);
  }
  registration = {region->region->lkey, region->region->rkey, mark(*region)};
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

void GpuRegistrations::release(const Registration& registration) noexcept {
  GpuRegion* region = marked(registration.entry);
  if (!region) return x_host->release(registration);
  std::lock_guard guard(x_mutex);
  if (--region->users > 0) return;
  x_held.erase(*region);
  if (region->stale) {
    delete region;
    return;
  }
  x_idle.push_back(*region);
  ++x_idle_count;
  trim();
}

/// What was registered of an earlier allocation at the same address is of no use to anyone.
GpuRegion* GpuRegistrations::find(const hmem::Allocation& allocation) noexcept {
  for (auto* list : {&x_held, &x_idle}) {
    for (GpuRegion* region = list->front(); region;) {
      GpuRegion* const next = list->next(*region);
      const bool overlaps = !region->stale && region->base < allocation.base + allocation.size &&
                            allocation.base < region->base + region->size;
      if (overlaps && region->id == allocation.id) return region;
      if (overlaps && region->users > 0) {
        region->stale = true;
      } else if (overlaps) {
        list->erase(*region);
        --x_idle_count;
        delete region;
      }
      region = next;
    }
  }
  return nullptr;
}

void GpuRegistrations::trim() noexcept {
  while (x_idle_count > x_max_idle) {
    delete x_idle.pop_front();
    --x_idle_count;
  }
}

/// Null: it can't be registered, now or ever.
GpuRegion* GpuRegistrations::make(const hmem::Allocation& allocation) {
  if (x_refused) return nullptr;
  auto made = std::make_unique<GpuRegion>();
  int dmabuf_error = 0, address_error = 0;
  made->region = as_dmabuf(allocation, dmabuf_error);
  if (!made->region) made->region = by_address(allocation, address_error);
  if (!made->region) {
    if (never(dmabuf_error) && never(address_error)) refuse(dmabuf_error, address_error);
    return nullptr;
  }
  made->base = allocation.base;
  made->size = allocation.size;
  made->id = allocation.id;
  return made.release();
}

MemoryRegion GpuRegistrations::as_dmabuf(const hmem::Allocation& allocation, int& error) noexcept {
  uint64_t offset = 0;
  const util::Fd file(x_cuda.export_dmabuf(allocation, offset));
  errno = EOPNOTSUPP;
  MemoryRegion region;
  if (file)
    region.reset(ibv_reg_dmabuf_mr(x_device.pd(), offset, allocation.size, allocation.base,
                                   file.get(), kAccess));
  error = errno;
  return region;
}

MemoryRegion GpuRegistrations::by_address(const hmem::Allocation& allocation, int& error) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's device pointers are numbers
  auto* const base = reinterpret_cast<void*>(allocation.base);
  MemoryRegion region(ibv_reg_mr(x_device.pd(), base, allocation.size, kAccess));
  error = errno;
  return region;
}

void GpuRegistrations::refuse(int dmabuf_error, int address_error) noexcept {
  x_refused = true;
  ERDMA_WARN(
      MR,
      "GPU memory can't be registered with %s (as a dmabuf: %s; by its address: %s): it is "
      "copied through host memory instead. Load nvidia-peermem, with a driver of the NIC that "
      "was built for it, or use a driver that has dmabuf\n",
      x_device.name().c_str(), util::ErrorText(dmabuf_error).c_str(),
      util::ErrorText(address_error).c_str());
}

// --- DirectSource

bool GpuRegistrations::can_expose(const iovec* memory, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    Registration registration;
    if (memory[i].iov_len == 0) continue;
    if (!x_cuda.is_device(memory[i].iov_base) ||
        acquire(memory[i].iov_base, memory[i].iov_len, registration))
      return false;
    release(registration);
  }
  return true;
}

/// Not to memory that its owner fills from packets: those a processor fills here.
bool GpuRegistrations::can_write(const iovec* memory, size_t count,
                                 const Exposure& remote) noexcept {
  RemoteMemory named;
  return decode(remote, named) && !named.staged && can_expose(memory, count);
}

}  // namespace erdma::transport::verbs
