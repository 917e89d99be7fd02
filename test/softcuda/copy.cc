// Copies, streams and events. An asynchronous operation happens at a synchronisation, or at the
// second query of its stream or event, and not before. An application that does not wait finds the
// old bytes. Fills, and copies within devices, are asynchronous, too, although CUDA calls them
// synchronous.
#include <algorithm>
#include <cstring>
#include <utility>

#include "softcuda/driver.h"
#include "softcuda/state.h"

namespace softcuda {
namespace {

/// Returns the bytes behind a pointer for the simulated device, which can access host memory, too.
/// Returns null beyond the end of an allocation, or without access. Caller holds the mutex.
std::byte* reach(State& s, DevicePointer pointer, size_t length, Device by) {
  if (s.find(pointer, 1)) return s.bytes(pointer, length, by);
  return reinterpret_cast<std::byte*>(pointer);
}

Result copy(State& s, DevicePointer to, DevicePointer from, size_t length, Device by) {
  if (length == 0) return kSuccess;
  std::byte* target = reach(s, to, length, by);
  const std::byte* source = reach(s, from, length, by);
  if (!target || !source) return kInvalidValue;
  std::memmove(target, source, length);
  return kSuccess;
}

/// Executes the pending copies of a stream. Caller holds the mutex.
Result run(StreamState& stream) {
  for (Pending& pending : stream.pending)
    if (const Result rc = pending.copy(); rc && !stream.failed) stream.failed = rc;
  stream.pending.clear();
  stream.asked = false;
  return std::exchange(stream.failed, kSuccess);
}

/// Adds a synchronous operation on the memory to the null stream. It is executed later, unless the
/// attribute CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of its memory is set. Caller holds the mutex.
Result synchronous(State& s, const Allocation& to, const Allocation& from,
                   std::function<Result()> operation) {
  s.null_stream.pending.push_back({std::move(operation), {to.buffer_id, from.buffer_id}});
  return to.sync_memops || from.sync_memops ? run(s.null_stream) : kSuccess;
}

Result now(const char* function, DevicePointer to, DevicePointer from, size_t length) {
  if (const Result rc = enter(function, Needs::context)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Device by = current_context()->device;
  const Allocation *target = s.find(to, 1), *source = s.find(from, 1);
  if (length > 0 && (!reach(s, to, length, by) || !reach(s, from, length, by)))
    return kInvalidValue;
  if (target && source)
    return synchronous(s, *target, *source, [=, &s] { return copy(s, to, from, length, by); });
  if (const Result rc = run(s.null_stream)) return rc;
  return copy(s, to, from, length, by);
}

Result later(const char* function, DevicePointer to, DevicePointer from, size_t length,
             Stream stream) {
  if (const Result rc = enter(function, Needs::context)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Device by = current_context()->device;
  if (length > 0 && (!reach(s, to, length, by) || !reach(s, from, length, by)))
    return kInvalidValue;
  StreamState* on = stream_of(stream);
  if (!on) return kInvalidHandle;
  if (on->capture && on->capture->ended) return kStreamCaptureInvalidated;
  auto& work = on->capture ? on->capture->nodes : on->pending;
  work.push_back({[=, &s] { return copy(s, to, from, length, by); }});
  return kSuccess;
}

DevicePointer address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

}  // namespace

void finish_synchronous(const Allocation& memory) {
  StreamState& stream = state().null_stream;
  const auto concerned = [&](const Pending& one) {
    return std::ranges::find(one.synchronous, memory.buffer_id) != std::end(one.synchronous);
  };
  if (std::ranges::any_of(stream.pending, concerned)) stream.failed = run(stream);
}

StreamState* stream_of(Stream stream) {
  State& s = state();
  if (!stream) return &s.null_stream;
  const auto found = s.streams.find(stream);
  return found == s.streams.end() ? nullptr : found->second.get();
}

}  // namespace softcuda

using namespace softcuda;

extern "C" {

Result cuMemcpy(DevicePointer to, DevicePointer from, size_t length) {
  return now("cuMemcpy", to, from, length);
}
Result cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t length) {
  return now("cuMemcpyDtoH", address(to), from, length);
}
Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t length) {
  return now("cuMemcpyHtoD", to, address(from), length);
}
Result cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t length) {
  return now("cuMemcpyDtoD", to, from, length);
}
Result cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t length, Stream stream) {
  return later("cuMemcpyAsync", to, from, length, stream);
}
Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t length, Stream stream) {
  return later("cuMemcpyDtoHAsync", address(to), from, length, stream);
}
Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t length, Stream stream) {
  return later("cuMemcpyHtoDAsync", to, address(from), length, stream);
}
Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t length, Stream stream) {
  return later("cuMemcpyDtoDAsync", to, from, length, stream);
}

Result cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t length) {
  if (const Result rc = enter("cuMemsetD8", Needs::context)) return rc;
  State& s = state();
  std::lock_guard guard(s.mutex);
  if (length == 0) return kSuccess;
  const Allocation* const filled = s.find(to, 1);
  const Device by = current_context()->device;
  if (!filled || !s.bytes(to, length, by)) return kInvalidValue;
  return synchronous(s, *filled, *filled, [=, &s] {
    std::byte* const target = s.bytes(to, length, by);
    if (target) std::memset(target, value, length);
    return target ? kSuccess : kInvalidValue;
  });
}

Result cuStreamCreate(Stream* stream, unsigned) {
  if (const Result rc = enter("cuStreamCreate", Needs::context)) return rc;
  auto made = std::make_unique<StreamState>();
  *stream = made.get();
  std::lock_guard guard(state().mutex);
  state().streams.emplace(*stream, std::move(made));
  return kSuccess;
}

Result cuStreamDestroy_v2(Stream stream) {
  if (const Result rc = enter("cuStreamDestroy", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  StreamState* gone = stream ? stream_of(stream) : nullptr;
  if (!gone) return kInvalidHandle;
  run(*gone);
  state().streams.erase(stream);
  return kSuccess;
}

Result cuStreamSynchronize(Stream stream) {
  if (const Result rc = enter("cuStreamSynchronize", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  StreamState* waited = stream_of(stream);
  if (!waited) return kInvalidHandle;
  if (const Result rc = refuse_while_captured(*waited)) return rc;
  return run(*waited);
}

Result cuStreamQuery(Stream stream) {
  if (const Result rc = enter("cuStreamQuery", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  StreamState* asked = stream_of(stream);
  if (!asked) return kInvalidHandle;
  if (const Result rc = refuse_while_captured(*asked)) return rc;
  if (asked->pending.empty() || std::exchange(asked->asked, true)) return run(*asked);
  return kNotReady;
}

Result cuCtxSynchronize() {
  if (const Result rc = enter("cuCtxSynchronize", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  return run(state().null_stream);
}

Result cuEventCreate(Event* event, unsigned) {
  if (const Result rc = enter("cuEventCreate", Needs::context)) return rc;
  *event = new EventState;
  return kSuccess;
}

Result cuEventDestroy_v2(Event event) {
  if (const Result rc = enter("cuEventDestroy", Needs::context)) return rc;
  delete static_cast<EventState*>(event);
  return kSuccess;
}

Result cuEventRecord(Event event, Stream stream) {
  if (const Result rc = enter("cuEventRecord", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  auto& recorded = *static_cast<EventState*>(event);
  recorded.stream = stream_of(stream);
  if (!recorded.stream) return kInvalidHandle;
  recorded.until = recorded.stream->pending.size();
  return kSuccess;
}

/// A stream runs as a whole, which is more than the event requires.
Result cuEventQuery(Event event) {
  if (const Result rc = enter("cuEventQuery", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  auto& recorded = *static_cast<EventState*>(event);
  if (!recorded.stream || recorded.until == 0) return kSuccess;
  if (!recorded.stream->pending.empty() && !std::exchange(recorded.stream->asked, true))
    return kNotReady;
  recorded.until = 0;
  return run(*recorded.stream);
}

Result cuEventSynchronize(Event event) {
  if (const Result rc = enter("cuEventSynchronize", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  auto& recorded = *static_cast<EventState*>(event);
  return recorded.stream ? run(*recorded.stream) : kSuccess;
}
}
