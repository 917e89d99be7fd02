// cuInit, devices and contexts.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "softcuda/driver.h"
#include "softcuda/state.h"

namespace softcuda {
namespace {

thread_local std::vector<ContextState*> t_contexts;

bool known(Device device) {
  return device >= 0 && device < state().devices;
}

}  // namespace

ContextState* current_context() {
  return t_contexts.empty() ? nullptr : t_contexts.back();
}

}  // namespace softcuda

using namespace softcuda;

extern "C" {

Result cuInit(unsigned flags) {
  if (const Result rc = enter("cuInit", Needs::nothing)) return rc;
  if (flags != 0) return kInvalidValue;
  std::lock_guard guard(state().mutex);
  if (state().devices == 0) return kNoDevice;
  state().initialized = true;
  state().initialized_in = getpid();
  return kSuccess;
}

Result cuDriverGetVersion(int* version) {
  if (const Result rc = enter("cuDriverGetVersion", Needs::nothing)) return rc;
  *version = 12040;
  return kSuccess;
}

Result cuGetErrorString(Result error, const char** text) {
  static thread_local char buffer[40];
  std::snprintf(buffer, sizeof(buffer), "simulated CUDA error %d", error);
  *text = buffer;
  return kSuccess;
}

Result cuGetErrorName(Result error, const char** text) {
  return cuGetErrorString(error, text);
}

Result cuDeviceGetCount(int* count) {
  if (const Result rc = enter("cuDeviceGetCount", Needs::initialized)) return rc;
  *count = state().devices;
  return kSuccess;
}

Result cuDeviceGet(Device* device, int ordinal) {
  if (const Result rc = enter("cuDeviceGet", Needs::initialized)) return rc;
  if (!known(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Result cuDeviceGetName(char* name, int length, Device device) {
  if (const Result rc = enter("cuDeviceGetName", Needs::initialized)) return rc;
  if (!known(device)) return kInvalidDevice;
  std::snprintf(name, size_t(length), "softcuda %d", device);
  return kSuccess;
}

Result cuDeviceGetPCIBusId(char* name, int length, Device device) {
  if (const Result rc = enter("cuDeviceGetPCIBusId", Needs::initialized)) return rc;
  if (!known(device)) return kInvalidDevice;
  std::snprintf(name, size_t(length), "0000:%02x:00.0", device + 1);
  return kSuccess;
}

Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  if (const Result rc = enter("cuDeviceGetAttribute", Needs::initialized)) return rc;
  if (!known(device)) return kInvalidDevice;
  switch (attribute) {
    case kDeviceUnifiedAddressing:
    case kDeviceGpuDirectRdma:
    case kDeviceFlushOptions:
      *value = 1;
      return kSuccess;
    case kDeviceComputeMajor:
      *value = 8;
      return kSuccess;
    case kDeviceWritesOrdering:
      *value = state().ordering;
      return kSuccess;
    case kDeviceDmabuf:
      *value = state().dmabuf;
      return kSuccess;
    default:
      *value = 0;
      return kSuccess;
  }
}

Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  if (const Result rc = enter("cuDevicePrimaryCtxRetain", Needs::initialized)) return rc;
  if (!known(device)) return kInvalidDevice;
  std::lock_guard guard(state().mutex);
  ++state().primary[device].retained;
  *context = &state().primary[device];
  return kSuccess;
}

Result cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  if (const Result rc = enter("cuDevicePrimaryCtxGetState", Needs::initialized)) return rc;
  if (!known(device)) return kInvalidDevice;
  std::lock_guard guard(state().mutex);
  *flags = 0;
  *active = state().primary[device].retained > 0;
  return kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(Device device) {
  if (const Result rc = enter("cuDevicePrimaryCtxRelease", Needs::initialized)) return rc;
  if (!known(device)) return kInvalidDevice;
  std::lock_guard guard(state().mutex);
  if (state().primary[device].retained == 0) return kInvalidContext;
  state().release(state().primary[device]);
  return kSuccess;
}

Result cuCtxGetCurrent(Context* context) {
  if (const Result rc = enter("cuCtxGetCurrent", Needs::initialized)) return rc;
  *context = current_context();
  return kSuccess;
}

Result cuCtxSetCurrent(Context context) {
  if (const Result rc = enter("cuCtxSetCurrent", Needs::initialized)) return rc;
  if (!t_contexts.empty()) t_contexts.pop_back();
  if (context) t_contexts.push_back(static_cast<ContextState*>(context));
  return kSuccess;
}

Result cuCtxPushCurrent_v2(Context context) {
  if (const Result rc = enter("cuCtxPushCurrent", Needs::initialized)) return rc;
  if (!context) return kInvalidContext;
  t_contexts.push_back(static_cast<ContextState*>(context));
  return kSuccess;
}

Result cuCtxPopCurrent_v2(Context* context) {
  if (const Result rc = enter("cuCtxPopCurrent", Needs::initialized)) return rc;
  if (t_contexts.empty()) return kInvalidContext;
  if (context) *context = t_contexts.back();
  t_contexts.pop_back();
  return kSuccess;
}

Result cuCtxGetDevice(Device* device) {
  if (const Result rc = enter("cuCtxGetDevice", Needs::context)) return rc;
  *device = current_context()->device;
  return kSuccess;
}
}
