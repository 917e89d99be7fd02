// Captures of streams into graphs, and which calls of the driver they forbid. A graph consists of
// the copies that were enqueued in its stream.
#include <set>
#include <utility>

#include "softcuda/driver.h"
#include "softcuda/state.h"

namespace softcuda {
namespace {

using Nodes = std::vector<Pending>;

thread_local int t_mode = kCaptureGlobal;

/// Calls that a capture does not record, so that a graph that relied on them would not work. CUDA
/// names some and reserves others; an H100 (driver 580) refuses only cuMemAlloc(), cuMemFree(),
/// cuStreamQuery() and cuStreamSynchronize() of these.
const std::set<std::string, std::less<>> kUnsafe = {
    "cuEventQuery",
    "cuEventSynchronize",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc",
    "cuMemAllocManaged",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFree",
    "cuMemGetHandleForAddressRange",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemcpyDtoD",
    "cuMemcpyDtoH",
    "cuMemcpyHtoD",
    "cuMemsetD8",
    "cuPointerSetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamQuery",
    "cuStreamSynchronize",
};

/// True if the capture forbids unsafe calls to this thread.
bool forbids(const Capture& capture) {
  if (capture.mode == kCaptureRelaxed || t_mode == kCaptureRelaxed) return false;
  if (capture.by == std::this_thread::get_id()) return true;
  return capture.mode == kCaptureGlobal && t_mode == kCaptureGlobal;
}

}  // namespace

Result refuse_beside_captures(State& s, const std::string& function) {
  const bool conflicts = function == "cuCtxSynchronize";  // in each mode
  if (!conflicts && !kUnsafe.contains(function)) return kSuccess;
  bool refused = false;
  for (auto& [handle, stream] : s.streams) {
    if (!stream->capture || (!conflicts && !forbids(*stream->capture))) continue;
    stream->capture->ended = true;
    refused = true;
  }
  return refused ? kStreamCaptureUnsupported : kSuccess;
}

Result refuse_while_captured(StreamState& stream) {
  if (!stream.capture) return kSuccess;
  stream.capture->ended = true;
  return kStreamCaptureUnsupported;
}

}  // namespace softcuda

using namespace softcuda;

extern "C" {

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  if (const Result rc = enter("cuThreadExchangeStreamCaptureMode", Needs::initialized)) return rc;
  if (*mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, t_mode);
  return kSuccess;
}

Result cuStreamBeginCapture_v2(Stream stream, int mode) {
  if (const Result rc = enter("cuStreamBeginCapture", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  StreamState* const captured = stream ? stream_of(stream) : nullptr;
  if (!captured) return kInvalidHandle;
  if (captured->capture) return kStreamCaptureUnsupported;
  captured->capture = std::make_unique<Capture>();
  captured->capture->by = std::this_thread::get_id();
  captured->capture->mode = mode;
  return kSuccess;
}

Result cuStreamEndCapture(Stream stream, Graph* graph) {
  if (const Result rc = enter("cuStreamEndCapture", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  StreamState* const captured = stream ? stream_of(stream) : nullptr;
  if (!captured || !captured->capture) return kInvalidValue;
  if (captured->capture->mode != kCaptureRelaxed &&
      captured->capture->by != std::this_thread::get_id())
    return kStreamCaptureWrongThread;
  const auto ended = std::exchange(captured->capture, nullptr);
  *graph = ended->ended ? nullptr : new Nodes(std::move(ended->nodes));
  return ended->ended ? kStreamCaptureInvalidated : kSuccess;
}

Result cuGraphInstantiateWithFlags(GraphExec* made, Graph graph, unsigned long long flags) {
  if (const Result rc = enter("cuGraphInstantiate", Needs::context)) return rc;
  if (!graph || flags != 0) return kInvalidValue;
  *made = new Nodes(*static_cast<Nodes*>(graph));
  return kSuccess;
}

Result cuGraphLaunch(GraphExec graph, Stream stream) {
  if (const Result rc = enter("cuGraphLaunch", Needs::context)) return rc;
  std::lock_guard guard(state().mutex);
  StreamState* const on = stream_of(stream);
  if (!on || !graph) return kInvalidHandle;
  const Nodes& nodes = *static_cast<Nodes*>(graph);
  on->pending.insert(on->pending.end(), nodes.begin(), nodes.end());
  return kSuccess;
}

Result cuGraphDestroy(Graph graph) {
  if (const Result rc = enter("cuGraphDestroy", Needs::context)) return rc;
  delete static_cast<Nodes*>(graph);
  return kSuccess;
}

Result cuGraphExecDestroy(GraphExec graph) {
  if (const Result rc = enter("cuGraphExecDestroy", Needs::context)) return rc;
  delete static_cast<Nodes*>(graph);
  return kSuccess;
}
}
