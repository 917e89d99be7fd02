// Device memory: allocation, pointer attributes, IPC and dmabuf.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "softcuda/driver.h"
#include "softcuda/state.h"

namespace softcuda {
namespace {

/// cuMemAlloc() aligns to 512 bytes, and the kernel pins device memory in pages of 64 KiB. Here
/// allocations are whole pages of the host, so that memory behind their end is inaccessible, too.
const size_t kPage = size_t(sysconf(_SC_PAGESIZE));

size_t pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// Maps a memfd for the application and for the device. Caller holds the mutex.
Result map(State& s, int fd, size_t size, uintptr_t hint, Allocation& made) {
  const size_t length = pages(size);
  void* alias = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  void* base = mmap(reinterpret_cast<void*>(hint), length, PROT_NONE, MAP_SHARED, fd, 0);
  if (alias == MAP_FAILED || base == MAP_FAILED) {
    if (alias != MAP_FAILED) munmap(alias, length);
    if (base != MAP_FAILED) munmap(base, length);
    return kOutOfMemory;
  }
  // A child does not get the mapping, as a real device pointer is not valid there.
  madvise(base, length, MADV_DONTFORK);
  made.base = reinterpret_cast<uintptr_t>(base);
  made.alias = static_cast<std::byte*>(alias);
  made.size = size;
  made.fd = fd;
  made.buffer_id = s.next_buffer_id++;
  return kSuccess;
}

/// Like a driver, waits for the operations on the memory. Caller holds the mutex.
void unmap(const Allocation& gone) {
  finish_synchronous(gone);
  munmap(reinterpret_cast<void*>(gone.base), pages(gone.size));
  munmap(gone.alias, pages(gone.size));
  close(gone.fd);
}

/// Content of an IPC handle. It names the memfd by its owner's descriptor, so new memory may have
/// the handle of freed memory. A process that has opened the handle still has the old memory.
struct Handle {
  char magic[8];
  int pid;
  int fd;
  uint64_t size;
  Device device;
};
static_assert(sizeof(Handle) <= sizeof(IpcMemHandle));
constexpr char kMagic[8] = "softipc";

/// Checks the file, as the descriptor may be another one by now.
bool is_device_memory(int fd, size_t size) {
  char link[64], name[64] = "";
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  struct stat status {};
  return readlink(link, name, sizeof(name) - 1) > 0 && std::strstr(name, "memfd:softcuda") &&
         fstat(fd, &status) == 0 && size_t(status.st_size) == pages(size);
}

template <typename T>
Result give(void* out, const T& value) {
  std::memcpy(out, &value, sizeof(value));
  return kSuccess;
}

Result attribute_of(State& s, const Allocation& memory, int attribute, DevicePointer pointer,
                    void* out) {
  switch (attribute) {
    case kPointerContext:
      return give(out, static_cast<Context>(memory.context));
    case kPointerMemoryType:
      return give(out, unsigned{kMemoryDevice});
    case kPointerDevicePointer:
      return give(out, pointer);
    case kPointerSyncMemops:
      return give(out, int{memory.sync_memops});
    case kPointerBufferId:
      return give(out, static_cast<unsigned long long>(memory.buffer_id));
    case kPointerIsManaged:
      return give(out, unsigned{memory.managed});
    case kPointerDeviceOrdinal:
      return give(out, memory.device);
    case kPointerIpcCapable:
      return give(out,
                  int{s.ipc && memory.ipc_source.empty() && !memory.physical && !memory.managed});
    case kPointerRangeStart:
      return give(out, DevicePointer(memory.base));
    case kPointerRangeSize:
      return give(out, memory.size);
    default:
      return kInvalidValue;
  }
}

}  // namespace

void State::release(ContextState& context) {
  if (--context.retained > 0) return;
  for (auto at = allocations.begin(); at != allocations.end();) {
    if (at->second.context != &context) {
      ++at;
      continue;
    }
    unmap(at->second);
    freed[pages(at->second.size)] = at->first;
    at = allocations.erase(at);
  }
  unpinned.notify_all();
}

}  // namespace softcuda

using namespace softcuda;

extern "C" {

Result cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
  if (const Result rc = enter("cuMemAlloc", Needs::context)) return rc;
  if (bytes == 0) return kInvalidValue;
  State& s = state();
  std::unique_lock guard(s.mutex);
  s.unpinned.wait(guard, [&] { return !s.freeing; });
  const int fd = memfd_create("softcuda", MFD_CLOEXEC);
  if (fd < 0) return kOutOfMemory;
  const auto reused = s.freed.find(pages(bytes));
  const uintptr_t hint = reused == s.freed.end() ? 0 : reused->second;
  if (hint) s.freed.erase(reused);
  Allocation made;
  const Result rc =
      ftruncate(fd, off_t(pages(bytes))) == 0 ? map(s, fd, bytes, hint, made) : kOutOfMemory;
  if (rc) {
    close(fd);
    return rc;
  }
  made.context = current_context();
  made.device = made.context->device;
  s.allocations.emplace(made.base, made);
  *pointer = made.base;
  return kSuccess;
}

/// Only the properties are those of managed memory: the processor has no access here either.
Result cuMemAllocManaged(DevicePointer* pointer, size_t bytes, unsigned flags) {
  if (const Result rc = enter("cuMemAllocManaged", Needs::context)) return rc;
  if (flags != 1) return kInvalidValue;  // CU_MEM_ATTACH_GLOBAL
  if (const Result rc = cuMemAlloc_v2(pointer, bytes)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  s.allocations.at(*pointer).managed = true;
  return kSuccess;
}

Result cuMemFree_v2(DevicePointer pointer) {
  if (const Result rc = enter("cuMemFree", Needs::context)) return rc;
  State& s = state();
  std::unique_lock guard(s.mutex);
  const auto known = [&] {
    const auto found = s.allocations.find(pointer);
    const bool freeable =
        found != s.allocations.end() && found->second.ipc_source.empty() && !found->second.physical;
    return freeable ? found : s.allocations.end();
  };
  const auto pinned = [&] {
    const auto found = known();
    return found != s.allocations.end() && found->second.pins > 0;
  };
  s.unpinned.wait(guard, [&] { return !s.freeing; });
  s.freeing = s.free_locks && pinned();
  if (s.free_waits) s.unpinned.wait(guard, [&] { return !pinned(); });
  s.freeing = false;
  s.unpinned.notify_all();
  const auto found = known();
  if (found == s.allocations.end()) return kInvalidValue;
  unmap(found->second);
  s.freed[pages(found->second.size)] = found->first;
  s.allocations.erase(found);
  return kSuccess;
}

Result cuMemGetAddressRange_v2(DevicePointer* base, size_t* size, DevicePointer pointer) {
  if (const Result rc = enter("cuMemGetAddressRange", Needs::context)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Allocation* found = s.find(pointer, 1);
  if (!found) return kInvalidValue;
  if (base) *base = found->base;
  if (size) *size = found->size;
  return kSuccess;
}

Result cuPointerGetAttribute(void* out, int attribute, DevicePointer pointer) {
  if (const Result rc = enter("cuPointerGetAttribute", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Allocation* found = s.find(pointer, 1);
  return found ? attribute_of(s, *found, attribute, pointer, out) : kInvalidValue;
}

/// For a pointer that CUDA does not know, the attributes are 0 and the call succeeds.
Result cuPointerGetAttributes(unsigned count, int* attributes, void** out, DevicePointer pointer) {
  if (const Result rc = enter("cuPointerGetAttributes", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Allocation* found = s.find(pointer, 1);
  for (unsigned i = 0; i < count; ++i) {
    const bool wide = attributes[i] == kPointerContext || attributes[i] == kPointerDevicePointer ||
                      attributes[i] == kPointerBufferId || attributes[i] == kPointerRangeStart ||
                      attributes[i] == kPointerRangeSize;
    if (!found)
      std::memset(out[i], 0, wide ? 8 : 4);
    else if (const Result rc = attribute_of(s, *found, attributes[i], pointer, out[i]))
      return rc;
  }
  return kSuccess;
}

Result cuPointerSetAttribute(const void* value, int attribute, DevicePointer pointer) {
  if (const Result rc = enter("cuPointerSetAttribute", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  Allocation* found = s.find(pointer, 1);
  if (!found || found->physical || attribute != kPointerSyncMemops) return kInvalidValue;
  unsigned on = 0;
  std::memcpy(&on, value, sizeof(on));
  found->sync_memops = on != 0;
  if (on) finish_synchronous(*found);
  return kSuccess;
}

Result cuIpcGetMemHandle(IpcMemHandle* out, DevicePointer pointer) {
  if (const Result rc = enter("cuIpcGetMemHandle", Needs::context)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Allocation* found = s.find(pointer, 1);
  if (!found || found->physical || found->managed) return kInvalidValue;
  if (!s.ipc || !found->ipc_source.empty()) return kNotSupported;
  Handle handle{};
  std::memcpy(handle.magic, kMagic, sizeof(kMagic));
  handle.pid = getpid();
  handle.fd = found->fd;
  handle.size = found->size;
  handle.device = found->device;
  std::memset(out, 0, sizeof(*out));
  std::memcpy(out, &handle, sizeof(handle));
  return kSuccess;
}

Result cuIpcOpenMemHandle_v2(DevicePointer* pointer, IpcMemHandle from, unsigned flags) {
  if (const Result rc = enter("cuIpcOpenMemHandle", Needs::context)) return rc;
  if (flags != kIpcLazyPeerAccess) return kInvalidValue;
  Handle handle;
  std::memcpy(&handle, &from, sizeof(handle));
  if (std::memcmp(handle.magic, kMagic, sizeof(kMagic)) != 0) return kInvalidValue;
  if (handle.pid == getpid()) return kInvalidContext;  // CUDA permits no use within one process
  State& s = state();
  std::lock_guard guard(s.mutex);
  if (!s.ipc) return kNotSupported;
  const std::string source(from.reserved, sizeof(from.reserved));
  for (auto& [base, open] : s.allocations) {
    if (open.ipc_source != source) continue;
    ++open.ipc_uses;
    *pointer = base;
    return kSuccess;
  }
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidValue;
  if (!is_device_memory(fd, handle.size)) {
    close(fd);
    return kInvalidValue;
  }
  Allocation made;
  if (const Result rc = map(s, fd, handle.size, 0, made)) {
    close(fd);
    return rc;
  }
  made.device = handle.device;
  made.context = current_context();
  made.ipc_source = source;
  made.ipc_uses = 1;
  s.allocations.emplace(made.base, made);
  *pointer = made.base;
  return kSuccess;
}

Result cuIpcCloseMemHandle(DevicePointer pointer) {
  if (const Result rc = enter("cuIpcCloseMemHandle", Needs::context)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto found = s.allocations.find(pointer);
  if (found == s.allocations.end() || found->second.ipc_source.empty()) return kInvalidValue;
  if (--found->second.ipc_uses > 0) return kSuccess;
  unmap(found->second);
  s.allocations.erase(found);
  return kSuccess;
}

/// The dmabuf is the memfd. Like the driver, the function refuses ranges other than whole pages of
/// one allocation.
Result cuMemGetHandleForAddressRange(void* out, DevicePointer pointer, size_t size, int type,
                                     unsigned long long flags) {
  if (const Result rc = enter("cuMemGetHandleForAddressRange", Needs::context)) return rc;
  State& s = state();
  std::unique_lock guard(s.mutex);
  s.unpinned.wait(guard, [&] { return !s.freeing; });
  if (type != kRangeHandleDmabufFd || flags != 0) return kInvalidValue;
  if (!s.dmabuf) return kNotSupported;
  if (pointer % kPage || size % kPage || size == 0) return kInvalidValue;
  const Allocation* found = s.find(pointer, 1);
  // The range must begin with the allocation, as the file has no other offset.
  if (!found || found->base != pointer || size > pages(found->size) || found->managed)
    return kInvalidValue;
  const int fd = fcntl(found->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return kOutOfMemory;
  return give(out, fd);
}

Result cuFlushGPUDirectRDMAWrites(int, int) {
  return enter("cuFlushGPUDirectRDMAWrites", Needs::context);
}
}
