#include "hmem/cuda_functions.h"

#include <dlfcn.h>

namespace erdma::hmem::cuda_api {
namespace {

template <typename F>
bool find(void* library, const char* name, F*& function) noexcept {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const char* Functions::look_up(void* library) noexcept {
  bool all = true;
#define ERDMA_FIND(name, parameters) all = find(library, #name, name) && all;
#define ERDMA_FIND_OR_FAIL(name, parameters) \
  if (!find(library, #name, name)) return #name;
  ERDMA_CUDA_REQUIRED(ERDMA_FIND_OR_FAIL)
  ERDMA_CUDA_OPTIONAL(ERDMA_FIND)
  all = true;
  ERDMA_CUDA_IPC(ERDMA_FIND)
  if (!all) cuIpcGetMemHandle = nullptr;
  all = true;
  ERDMA_CUDA_FILES(ERDMA_FIND)
  if (!all) cuMemRetainAllocationHandle = nullptr;
#undef ERDMA_FIND
#undef ERDMA_FIND_OR_FAIL
  return nullptr;
}

/// CUDA does not know most host memory, and answers that the value is invalid. After a failed
/// kernel or while the driver is unloaded, it answers with another error for memory of any kind.
MemoryKind Functions::kind_of(const void* pointer) const noexcept {
  unsigned type = 0;
  if (!pointer) return MemoryKind::host;
  const Result rc = cuPointerGetAttribute(&type, kPointerMemoryType, address_of(pointer));
  if (rc == kSuccess) return type == kMemoryDevice ? MemoryKind::device : MemoryKind::host;
  return rc == kInvalidValue || rc == kNotInitialized ? MemoryKind::host : MemoryKind::unknown;
}

Device Functions::device_of(const void* pointer) const noexcept {
  Device device = -1;
  const Result rc = cuPointerGetAttribute(&device, kPointerDeviceOrdinal, address_of(pointer));
  return rc == kSuccess ? device : -1;
}

/// Pinned host memory has a context and a buffer id, too.
MemoryFacts Functions::facts_of(const void* pointer) const noexcept {
  unsigned type = 0;
  unsigned long long id = 0;
  MemoryFacts found;
  int attributes[] = {kPointerContext, kPointerMemoryType, kPointerBufferId};
  void* values[] = {&found.context, &type, &id};
  if (cuPointerGetAttributes(3, attributes, values, address_of(pointer)) != kSuccess) return {};
  if (type == kMemoryDevice) found.id = id;
  return found;
}

bool Functions::range(const void* pointer, uintptr_t& base, size_t& size) const noexcept {
  DevicePointer start = 0;
  Result rc = cuPointerGetAttribute(&start, kPointerRangeStart, address_of(pointer));
  if (rc == kSuccess) rc = cuPointerGetAttribute(&size, kPointerRangeSize, address_of(pointer));
  if (rc != kSuccess) {
    const EnteredContext in(*this, pointer);
    if (in.get()) rc = cuMemGetAddressRange_v2(&start, &size, address_of(pointer));
  }
  base = start;
  return rc == kSuccess;
}

uint64_t Functions::buffer_id(DevicePointer address) const noexcept {
  unsigned long long id = 0;
  return cuPointerGetAttribute(&id, kPointerBufferId, address) == kSuccess ? id : 0;
}

BesideCaptures::BesideCaptures(const Functions& api) noexcept
    : x_api(api),
      x_changed(api.cuThreadExchangeStreamCaptureMode &&
                api.cuThreadExchangeStreamCaptureMode(&x_mode) == kSuccess) {}

BesideCaptures::~BesideCaptures() {
  if (x_changed) x_api.cuThreadExchangeStreamCaptureMode(&x_mode);
}

bool PrimaryContext::is_active(const Functions& api, Device device) noexcept {
  unsigned flags = 0;
  int active = 0;
  return device >= 0 && api.cuDevicePrimaryCtxGetState && api.cuDevicePrimaryCtxRetain &&
         api.cuDevicePrimaryCtxRelease_v2 &&
         api.cuDevicePrimaryCtxGetState(device, &flags, &active) == kSuccess && active;
}

PrimaryContext::PrimaryContext(const Functions& api, Device device) noexcept
    : x_api(api), x_device(device) {
  if (!is_active(api, device) || api.cuDevicePrimaryCtxRetain(&x_context, device) != kSuccess)
    x_context = nullptr;
}

PrimaryContext::~PrimaryContext() {
  if (x_context) x_api.cuDevicePrimaryCtxRelease_v2(x_device);
}

EnteredContext::EnteredContext(const Functions& api, const void* one, const void* other) noexcept
    : x_api(api), x_beside(api) {
  Context const found = find(one, other);  // NOLINT(misc-misplaced-const): what is meant
  if (found && api.cuCtxPushCurrent_v2(found) == kSuccess) x_context = found;
}

EnteredContext::~EnteredContext() {
  if (x_context) x_api.cuCtxPopCurrent_v2(nullptr);
}

Context EnteredContext::find(const void* one, const void* other) noexcept {
  Context found = nullptr;
  for (const void* pointer : {one, other}) {
    if (!pointer) continue;
    const MemoryFacts facts = x_api.facts_of(pointer);
    if (facts.id && !x_id) {
      x_memory = pointer;
      x_id = facts.id;
    }
    if (facts.context) return facts.context;
  }
  for (const void* pointer : {one, other}) {
    if (!x_api.is_device(pointer)) continue;
    x_primary.emplace(x_api, x_api.device_of(pointer));
    if (x_primary->get()) return x_primary->get();
    if (x_api.cuCtxGetCurrent(&found) == kSuccess && found) return found;
  }
  return nullptr;
}

}  // namespace erdma::hmem::cuda_api
