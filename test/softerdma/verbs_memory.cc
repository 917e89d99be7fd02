// Protection domains and memory regions.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "softerdma/fault.h"
#include "softerdma/fork.h"
#include "softerdma/posted.h"
#include "softerdma/process.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace softerdma;

namespace {

constexpr unsigned kRemoteMutable = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
/// RELAXED_ORDERING and other optional flags are ignored, except for GPUs (execute.cc).
constexpr unsigned kKnownAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | kRemoteMutable | IBV_ACCESS_OPTIONAL_RANGE;

/// Adding up takes some microseconds, so that is done only where a limit was set. Tests that run at
/// the same time share a host.
bool all_taken(Process& process, const Device& device) {
  const uint64_t most = device.config.limits.host_mr;
  return most > 0 && process.of_host(device, &ProcessEntry::OnDevice::mrs) >= most;
}

/// Returns a free entry of the table, or 0. Caller holds Process::mutex.
uint32_t take_index(Process& process, const Device& device) {
  if (all_taken(process, device)) return 0;
  if (!process.free_mrs.empty()) {
    uint32_t index = process.free_mrs.back();
    process.free_mrs.pop_back();
    return index;
  }
  return process.used_mrs < device.config.limits.max_mr ? ++process.used_mrs : 0;
}

int refuse(const Process& process, const Limits& limits, size_t length, unsigned access) {
  if ((access & ~kKnownAccess) != 0) return EOPNOTSUPP;
  if ((access & kRemoteMutable) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  if (length == 0 || length > limits.max_mr_size) return EINVAL;
  if (process.registered_bytes + length > limits.memlock) return ENOMEM;
  return fault_on_registration();
}

/// Returns the number of libraries that this process has loaded so far.
unsigned long long libraries_loaded() {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<unsigned long long*>(to) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

/// Returns a function of the simulated GPU (test/softcuda), or null if the process has no such GPU.
/// dlopen() of a library that is not loaded looks for its file. For each registration, this would
/// take as long as a copy of 256 KiB.
template <typename F>
F* of_gpu(const char* name) {
  static std::atomic<unsigned long long> without{0};  // number of libraries without a driver
  const unsigned long long loaded = libraries_loaded();
  if (without.load(std::memory_order_relaxed) == loaded) return nullptr;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) {
    without.store(loaded, std::memory_order_relaxed);
    return nullptr;
  }
  auto* function = reinterpret_cast<F*>(dlsym(driver, name));
  dlclose(driver);
  return function;
}

/// Returns false if the process itself has no access to the first or last byte: a kernel cannot pin
/// such memory, as that of a real GPU. Where the kernel refuses to tell, the memory is accepted.
bool can_be_pinned(const void* address, size_t length) {
  char seen[2];
  char* const first = static_cast<char*>(const_cast<void*>(address));
  const iovec to[] = {{seen, 2}}, from[] = {{first, 1}, {first + length - 1, 1}};
  const long count = syscall(SYS_process_vm_readv, getpid(), to, 1, from, 2, 0);
  return count == 2 || (count < 0 && errno != EFAULT);
}

/// If the address belongs to a simulated GPU, replaces it by that of the bytes, as the processor
/// has no access, and sets `gpu`. Returns 0 or the errno of a kernel that cannot pin the memory.
int find_on_gpu(const Limits& limits, size_t length, void*& address, int& gpu) {
  auto* alias = of_gpu<void*(const void*, size_t)>("softcuda_alias");
  if (alias == nullptr || alias(address, 1) == nullptr)
    return can_be_pinned(address, length) ? 0 : EFAULT;
  void* bytes = limits.peermem != 0 ? alias(address, length) : nullptr;
  if (bytes == nullptr) return EFAULT;
  if (auto* device = of_gpu<int(const void*)>("softcuda_device")) gpu = device(address);
  address = bytes;
  return 0;
}

/// Freeing memory of a simulated GPU may wait for unpin().
unsigned long pin(const void* address) {
  auto* function = of_gpu<unsigned long(const void*)>("softcuda_pin");
  return function != nullptr ? function(address) : 0;
}
void unpin(unsigned long pinned) {
  auto* function = pinned != 0 ? of_gpu<void(unsigned long)>("softcuda_unpin") : nullptr;
  if (function != nullptr) function(pinned);
}

/// Returns MrEntry::posted for this GPU, or 0 if stores to it are not posted. Caller holds
/// Process::mutex.
uint32_t posted_to(Process& process, const Device& device, int gpu) {
  if (gpu < 0 || device.config.limits.posted == 0) return 0;
  if (process.self()->posted(process.fabric, device.index) == nullptr) {
    const std::string name = "posted" + std::to_string(device.index);
    if (!Mapping::create(process.fabric.own_path(name), sizeof(PostedShared))) return 0;
  }
  return 1 + (device.index << 16 | static_cast<uint32_t>(gpu));
}

Mr* register_memory(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access,
                    bool dmabuf = false, int gpu = -1) {
  Context& context = Context::from(pd->context);
  Process& process = *context.process;
  const Limits& limits = context.device->config.limits;
  void* const named = address;
  int error = command(*context.device);
  std::lock_guard guard(process.mutex);
  if (error == 0) error = refuse(process, limits, length, access);
  if (error == 0 && !dmabuf) error = find_on_gpu(limits, length, address, gpu);
  uint32_t index = error == 0 ? take_index(process, *context.device) : 0;
  if (index == 0) {
    errno = error != 0 ? error : ENOSPC;
    return nullptr;
  }
  if (!dmabuf) error = keep_from_children(named, length);
  if (error != 0) {
    process.free_mrs.push_front(index);
    errno = error;
    return nullptr;
  }
  const unsigned long pinned = !dmabuf && gpu >= 0 ? pin(named) : 0;
  uint8_t& generation = process.mr_generation[index];
  if (++generation == 0) generation = 1;
  auto* mr = new Mr;
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = named;
  mr->length = length;
  mr->handle = index;
  mr->pinned = pinned;
  mr->lkey = mr->rkey = index << 8 | generation;
  MrEntry& entry = process.mrs.as<MrEntry>()[index];
  entry.access = access;
  entry.pd = pd->handle;
  entry.iova = iova;
  entry.address = reinterpret_cast<uint64_t>(address);
  // The driver passes only so many bits of the length to the adapter, without an error.
  entry.length =
      limits.region_bits < 64 ? length & ((uint64_t{1} << limits.region_bits) - 1) : length;
  entry.posted = posted_to(process, *context.device, gpu);
  entry.chance = limits.posted;
  entry.key.store(mr->rkey, std::memory_order_release);
  process.registered_bytes += length;
  ++process.counts(*context.device).mrs;
  ++static_cast<Pd*>(pd)->children;
  return mr;
}

}  // namespace

SOFTERDMA_API ibv_pd* ibv_alloc_pd(ibv_context* handle) {
  Context& context = Context::from(handle);
  std::lock_guard guard(context.process->mutex);
  auto* pd = new Pd;
  pd->context = handle;
  pd->handle = context.process->next_number++;
  ++context.children;
  ++context.process->pds;
  return pd;
}

SOFTERDMA_API int ibv_dealloc_pd(ibv_pd* handle) {
  auto* pd = static_cast<Pd*>(handle);
  Context& context = Context::from(handle->context);
  if (context.process == Process::existing()) {
    if (pd->children.load() != 0) return EBUSY;
    --context.process->pds;
  }
  --context.children;
  delete pd;
  return 0;
}

SOFTERDMA_API ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return register_memory(pd, address, length, reinterpret_cast<uint64_t>(address),
                         static_cast<unsigned>(access));
}
SOFTERDMA_API ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                      int access) {
  return register_memory(pd, address, length, iova, static_cast<unsigned>(access));
}
SOFTERDMA_API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                       unsigned access) {
  return register_memory(pd, address, length, iova, access);
}

/// The dmabuf of a simulated GPU is a file that can be mapped.
SOFTERDMA_API ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova,
                                        int fd, int access) {
  struct stat status {};
  if (Context::from(pd->context).device->config.limits.dmabuf == 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (fstat(fd, &status) != 0) return nullptr;
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (length == 0 || offset > bytes || length > bytes - offset) {
    errno = EINVAL;
    return nullptr;
  }
  auto* device = of_gpu<int(int)>("softcuda_device_of_dmabuf");
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return nullptr;
  Mr* mr = register_memory(pd, static_cast<char*>(mapped) + offset, length, iova,
                           static_cast<unsigned>(access), true, device ? device(fd) : 0);
  if (mr == nullptr) {
    int error = errno;
    munmap(mapped, bytes);
    errno = error;
    return nullptr;
  }
  mr->addr = nullptr;
  mr->mapped = mapped;
  mr->mapped_length = bytes;
  return mr;
}

SOFTERDMA_API int ibv_dereg_mr(ibv_mr* handle) {
  auto* mr = static_cast<Mr*>(handle);
  Process& process = *Context::from(handle->context).process;
  if (&process == Process::existing()) {
    if (const int error = command(*Context::from(handle->context).device, false)) return error;
    std::lock_guard guard(process.mutex);
    process.mrs.as<MrEntry>()[mr->handle].key.store(0, std::memory_order_seq_cst);
    for (uint32_t i = 0; i < process.highest_qp; ++i) {
      if (Qp* qp = process.qps[i].load(); qp != nullptr) quiesce(process, *qp, mr->rkey);
    }
    const Device& device = *Context::from(handle->context).device;
    if (process.mrs.as<MrEntry>()[mr->handle].posted != 0)
      arrive_all(process.fabric, *process.self(),
                 *process.self()->posted(process.fabric, device.index));
    process.registered_bytes -= mr->length;
    --process.counts(device).mrs;
    if (const auto pages = process.diverted.find(mr->handle); pages != process.diverted.end()) {
      munmap(pages->second.first, pages->second.second);
      process.diverted.erase(pages);
    }
    if (mr->addr != nullptr) give_to_children(mr->addr, mr->length);
    process.free_mrs.push_front(mr->handle);
    unpin(mr->pinned);
  }
  if (mr->mapped != nullptr) munmap(mr->mapped, mr->mapped_length);
  --static_cast<Pd*>(mr->pd)->children;
  delete mr;
  return 0;
}
