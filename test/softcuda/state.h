#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hmem/cuda_api.h"

/// State of the simulated driver in one process.
namespace softcuda {

using namespace erdma::hmem::cuda_api;

struct ContextState {
  Device device = 0;
  unsigned retained = 0;  ///< number of cuDevicePrimaryCtxRetain() calls
};

/// Device memory: a memfd that is mapped twice. The device pointer is `base`, where the process has
/// no access, so that a processor that takes it for host memory faults. The device uses `alias`.
struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;
  std::byte* alias = nullptr;
  int fd = -1;
  uint64_t buffer_id = 0;
  Device device = 0;
  ContextState* context = nullptr;  ///< it ends with this context; null: memory of cuMemMap()
  bool managed = false;
  bool sync_memops = false;
  std::string ipc_source;  ///< handle, if it is mapped from another process
  unsigned ipc_uses = 0;
  PhysicalMemory physical = 0;  ///< set if cuMemMap() mapped it, without a context
  unsigned readers = ~0u;       ///< one bit for each device that may access it
  unsigned pins = 0;            ///< number of registrations by address
};

/// Memory of cuMemCreate(): a memfd. Each mapping has a descriptor of its own.
struct Physical {
  int fd = -1;
  size_t size = 0;
  Device device = 0;
  int handle_types = 0;
  unsigned uses = 1;  ///< number of handles of the application and of mappings
  unsigned handles = 1;
};

/// Addresses of cuMemAddressReserve(), in both views, so that adjacent mappings are adjacent in
/// both.
struct Reservation {
  size_t size = 0;
  std::byte* alias = nullptr;
};

struct Pending {
  std::function<Result()> copy;
  /// Buffer ids of the memory of a synchronous operation that the null stream has not executed when
  /// its call returns; a 0 is none.
  uint64_t synchronous[2] = {};
};
/// A capture of a stream into a graph.
struct Capture {
  std::thread::id by;  ///< the thread that began it
  int mode = 0;        ///< CU_STREAM_CAPTURE_MODE_*
  bool ended = false;  ///< a call ended it; cuStreamEndCapture() gives no graph
  std::vector<Pending> nodes;
};
struct StreamState {
  std::vector<Pending> pending;
  std::unique_ptr<Capture> capture;  ///< null: the stream is not being captured
  bool asked = false;                ///< a query found work, so the next one executes it
  Result failed = kSuccess;
};
struct EventState {
  StreamState* stream = nullptr;  ///< null: never recorded, or complete
  size_t until = 0;               ///< number of the stream's pending copies before the event
};

struct Fault {
  std::string function;
  Result error = kSuccess;
  unsigned long n = 1;  ///< number of the call that fails
  unsigned long times = 1;
};

constexpr int kMaxDevices = 8;

struct State {
  std::mutex mutex;
  bool initialized = false;
  pid_t initialized_in = 0;  ///< process that called cuInit(); a forked child can't use the driver
  int devices = 1;
  bool dmabuf = true;
  bool ipc = true;
  bool free_waits = false;  ///< free waits for the end of all pins
  bool free_locks = false;  ///< and other calls wait for it
  bool freeing = false;     ///< a free waits, and other calls wait for it
  std::condition_variable unpinned;
  std::string released_in;  ///< the function during which a primary context is released
  int ordering = 0;         ///< CU_GPU_DIRECT_RDMA_WRITES_ORDERING_*
  uint64_t next_buffer_id = 1;
  std::map<uintptr_t, Allocation> allocations;  ///< allocations by base
  std::map<size_t, uintptr_t> freed;  ///< freed address by size; like a driver, it is used again
  std::map<PhysicalMemory, Physical> physical;
  std::map<uintptr_t, Reservation> reserved;  ///< reservations by address
  PhysicalMemory next_physical = 1;
  ContextState primary[kMaxDevices];
  StreamState null_stream;
  std::map<Stream, std::unique_ptr<StreamState>> streams;
  std::map<std::string, unsigned long> calls;
  std::vector<Fault> faults;

  State();
  /// Returns the allocation that contains [pointer, +length), or null.
  Allocation* find(uintptr_t pointer, size_t length);
  /// Returns the address of [pointer, +length) for the device, also across adjacent mappings, or
  /// null if it is no device memory or the device has no access. -1 stands for any device with
  /// access.
  std::byte* bytes(uintptr_t pointer, size_t length, Device reader = -1);
  /// Drops one use of a primary context. The last one destroys it, with its memory and mappings.
  void release(ContextState& context);
};

State& state();

enum class Needs { nothing, initialized, context };
/// Counts a call and returns the error of a fault, or kSuccess. Takes the mutex itself.
Result enter(const char* function, Needs needs);

/// Returns the stream of the handle; null: it does not exist (any more). Caller holds the mutex.
StreamState* stream_of(Stream stream);
/// Executes the null stream if a synchronous operation on this memory is pending in it. Caller
/// holds the mutex.
void finish_synchronous(const Allocation& memory);
/// Returns the error of a call that a capture forbids to this thread, and ends the capture; else
/// kSuccess. Caller holds the mutex.
Result refuse_beside_captures(State& state, const std::string& function);
/// The same for a call that waits for this stream or asks for its state.
Result refuse_while_captured(StreamState& stream);

/// Returns the current context of this thread, or null.
ContextState* current_context();

}  // namespace softcuda
