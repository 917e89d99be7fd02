// Device memory in two steps: physical memory has a handle, and is mapped at reserved addresses. It
// belongs to no context. A device can access it after cuMemSetAccess().
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "softcuda/driver.h"
#include "softcuda/state.h"

namespace softcuda {
namespace {

constexpr size_t kGranularity = size_t(2) << 20;

/// Reserves an aligned, inaccessible range.
void* reserve(size_t size) {
  void* const raw = mmap(nullptr, size + kGranularity, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(raw);
  const size_t before = (kGranularity - reinterpret_cast<uintptr_t>(raw) % kGranularity);
  munmap(start, before);
  munmap(start + before + size, kGranularity - before);
  return start + before;
}

/// Makes the range as inaccessible as after reserve().
void clear(void* at, size_t size) {
  mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/// Releases one use of the memory. Caller holds the mutex.
void let_go(State& s, PhysicalMemory handle) {
  const auto found = s.physical.find(handle);
  if (found == s.physical.end() || --found->second.uses > 0) return;
  close(found->second.fd);
  s.physical.erase(found);
}

/// Returns the device, which is part of the name that the kernel shows for the file, or -1 for
/// another file.
Device device_of(int fd) {
  char link[64], name[64] = "";
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  Device device = -1;
  if (readlink(link, name, sizeof(name) - 1) <= 0) return -1;
  return std::sscanf(name, "/memfd:softcuda-%d", &device) == 1 ? device : -1;
}

/// Returns the reservation that contains the whole range, or null. Caller holds the mutex.
const std::pair<const uintptr_t, Reservation>* reservation(State& s, uintptr_t address,
                                                           size_t size) {
  auto after = s.reserved.upper_bound(address);
  if (after == s.reserved.begin()) return nullptr;
  const auto& found = *std::prev(after);
  const size_t offset = address - found.first;
  return offset < found.second.size && size <= found.second.size - offset ? &found : nullptr;
}

bool whole(size_t size) {
  return size > 0 && size % kGranularity == 0;
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

extern "C" {

Result cuMemCreate(PhysicalMemory* made, size_t size, const MemAllocationProperties* wanted,
                   unsigned long long flags) {
  if (const Result rc = enter("cuMemCreate", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Device device = wanted->location.id;
  if (wanted->type != kMemoryPinned || wanted->location.type != kLocationDevice || flags != 0 ||
      device < 0 || device >= s.devices || !whole(size))
    return kInvalidValue;
  const int fd = memfd_create(("softcuda-" + std::to_string(device)).c_str(), MFD_CLOEXEC);
  if (fd < 0) return kOutOfMemory;
  if (ftruncate(fd, off_t(size))) return close(fd), kOutOfMemory;
  *made = s.next_physical++;
  s.physical[*made] = {fd, size, device, wanted->handle_types};
  return kSuccess;
}

Result cuMemRelease(PhysicalMemory handle) {
  if (const Result rc = enter("cuMemRelease", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto found = s.physical.find(handle);
  if (found == s.physical.end() || found->second.handles == 0) return kInvalidValue;
  --found->second.handles;
  let_go(s, handle);
  return kSuccess;
}

/// Like the driver, returns the same handle by which the memory was mapped.
Result cuMemRetainAllocationHandle(PhysicalMemory* handle, void* address) {
  if (const Result rc = enter("cuMemRetainAllocationHandle", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Allocation* found = s.find(reinterpret_cast<uintptr_t>(address), 1);
  if (!found || !found->physical) return kInvalidValue;
  Physical& physical = s.physical.at(found->physical);
  ++physical.uses;
  ++physical.handles;
  *handle = found->physical;
  return kSuccess;
}

Result cuMemGetAllocationPropertiesFromHandle(MemAllocationProperties* out, PhysicalMemory handle) {
  if (const Result rc = enter("cuMemGetAllocationPropertiesFromHandle", Needs::initialized))
    return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto found = s.physical.find(handle);
  if (found == s.physical.end()) return kInvalidValue;
  *out = {};
  out->type = kMemoryPinned;
  out->handle_types = found->second.handle_types;
  out->location = {kLocationDevice, found->second.device};
  return kSuccess;
}

Result cuMemGetAllocationGranularity(size_t* out, const MemAllocationProperties*, int) {
  if (const Result rc = enter("cuMemGetAllocationGranularity", Needs::initialized)) return rc;
  *out = kGranularity;
  return kSuccess;
}

Result cuMemAddressReserve(DevicePointer* address, size_t size, size_t, DevicePointer,
                           unsigned long long flags) {
  if (const Result rc = enter("cuMemAddressReserve", Needs::initialized)) return rc;
  if (!whole(size) || flags != 0) return kInvalidValue;
  void* const base = reserve(size);
  void* const alias = reserve(size);
  if (!base || !alias) return kOutOfMemory;
  State& s = state();
  std::lock_guard guard(s.mutex);
  s.reserved[reinterpret_cast<uintptr_t>(base)] = {size, static_cast<std::byte*>(alias)};
  *address = reinterpret_cast<uintptr_t>(base);
  return kSuccess;
}

Result cuMemAddressFree(DevicePointer address, size_t size) {
  if (const Result rc = enter("cuMemAddressFree", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto found = s.reserved.find(address);
  if (found == s.reserved.end() || found->second.size != size) return kInvalidValue;
  const auto mapped = s.allocations.lower_bound(address);
  if (mapped != s.allocations.end() && mapped->first < address + size) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), size);
  munmap(found->second.alias, size);
  s.reserved.erase(found);
  return kSuccess;
}

Result cuMemMap(DevicePointer address, size_t size, size_t offset, PhysicalMemory handle,
                unsigned long long flags) {
  if (const Result rc = enter("cuMemMap", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto physical = s.physical.find(handle);
  const auto* range = reservation(s, address, size);
  if (physical == s.physical.end() || !range || offset != 0 || flags != 0 || !whole(size) ||
      address % kGranularity || size > physical->second.size || s.find(address, 1))
    return kInvalidValue;
  Allocation made;
  made.base = address;
  made.size = size;
  made.alias = range->second.alias + (address - range->first);
  made.fd = fcntl(physical->second.fd, F_DUPFD_CLOEXEC, 0);
  void* const seen = reinterpret_cast<void*>(address);
  if (made.fd < 0) return kOutOfMemory;
  if (mmap(made.alias, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, made.fd, 0) ==
          MAP_FAILED ||
      mmap(seen, size, PROT_NONE, MAP_SHARED | MAP_FIXED, made.fd, 0) == MAP_FAILED)
    return close(made.fd), kOutOfMemory;
  madvise(seen, size, MADV_DONTFORK);
  made.device = physical->second.device;
  made.buffer_id = s.next_buffer_id++;
  made.physical = handle;
  made.readers = 0;
  ++physical->second.uses;
  s.allocations.emplace(made.base, made);
  return kSuccess;
}

Result cuMemUnmap(DevicePointer address, size_t size) {
  if (const Result rc = enter("cuMemUnmap", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto found = s.allocations.find(address);
  if (found == s.allocations.end() || !found->second.physical || found->second.size != size)
    return kInvalidValue;
  finish_synchronous(found->second);
  clear(reinterpret_cast<void*>(address), size);
  clear(found->second.alias, size);
  close(found->second.fd);
  let_go(s, found->second.physical);
  s.allocations.erase(found);
  return kSuccess;
}

Result cuMemSetAccess(DevicePointer address, size_t size, const MemAccess* access, size_t count) {
  if (const Result rc = enter("cuMemSetAccess", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  if (!s.bytes(address, size)) return kInvalidValue;
  for (auto at = s.allocations.find(address);
       at != s.allocations.end() && at->first < address + size; ++at) {
    for (size_t i = 0; i < count; ++i) {
      if (access[i].location.id < 0 || access[i].location.id >= s.devices) return kInvalidDevice;
      const unsigned bit = 1u << access[i].location.id;
      at->second.readers = access[i].flags ? at->second.readers | bit : at->second.readers & ~bit;
    }
  }
  return kSuccess;
}

Result cuMemExportToShareableHandle(void* out, PhysicalMemory handle, int type,
                                    unsigned long long flags) {
  if (const Result rc = enter("cuMemExportToShareableHandle", Needs::initialized)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto found = s.physical.find(handle);
  if (found == s.physical.end() || type != kHandlePosixFd || flags != 0 ||
      !(found->second.handle_types & type))
    return kInvalidValue;
  const int fd = fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return kOutOfMemory;
  *static_cast<int*>(out) = fd;
  return kSuccess;
}

/// The descriptor still belongs to its owner.
Result cuMemImportFromShareableHandle(PhysicalMemory* out, void* shared, int type) {
  if (const Result rc = enter("cuMemImportFromShareableHandle", Needs::initialized)) return rc;
  if (type != kHandlePosixFd) return kInvalidValue;
  const int theirs = int(reinterpret_cast<intptr_t>(shared));
  struct stat status {};
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Device device = device_of(theirs);
  if (device < 0 || device >= s.devices || fstat(theirs, &status)) return kUnknown;
  const int fd = fcntl(theirs, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return kOutOfMemory;
  *out = s.next_physical++;
  s.physical[*out] = {fd, size_t(status.st_size), device, kHandlePosixFd};
  return kSuccess;
}
}
