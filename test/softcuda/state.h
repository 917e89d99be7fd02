#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hmem/cuda_api.h"

/// What the simulated driver knows of one process.
namespace softcuda {

using namespace erdma::hmem::cuda_api;

/// Device memory: a memfd, mapped twice. At `base`, the device pointer, the process has no access,
/// so that a processor that takes it for host memory faults; `alias` is where the device sees it.
struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;
  std::byte* alias = nullptr;
  int fd = -1;
  uint64_t buffer_id = 0;
  Device device = 0;
  bool sync_memops = false;
  std::string ipc_source;  ///< mapped from another process: what its handle says
  unsigned ipc_uses = 0;
  PhysicalMemory physical = 0;  ///< mapped by cuMemMap(): of no context; 0: by cuMemAlloc()
  unsigned readers = ~0u;       ///< bit per device that may access it
  unsigned pins = 0;            ///< by adapters that registered it by its address
};

/// What cuMemCreate() makes: a memfd. A mapping has a descriptor of its own.
struct Physical {
  int fd = -1;
  size_t size = 0;
  Device device = 0;
  int handle_types = 0;
  unsigned uses = 1;  ///< handles of the application and mappings
  unsigned handles = 1;
};

/// What cuMemAddressReserve() gives: both views of it, so that neighbours stay neighbours.
struct Reservation {
  size_t size = 0;
  std::byte* alias = nullptr;
};

struct Pending {
  std::function<Result()> copy;
};
struct StreamState {
  std::vector<Pending> pending;
  bool asked = false;  ///< a query found work: it is done at the next
  Result failed = kSuccess;
};
struct EventState {
  StreamState* stream = nullptr;  ///< null: never recorded, or all before it is done
  size_t until = 0;               ///< as many of the stream's pending copies precede it
};

struct ContextState {
  Device device = 0;
  unsigned retained = 0;  ///< the primary one: how often
};

struct Fault {
  std::string function;
  Result error = kSuccess;
  unsigned long n = 1;  ///< calls until it strikes
  unsigned long times = 1;
};

constexpr int kMaxDevices = 8;

struct State {
  std::mutex mutex;
  bool initialized = false;
  int devices = 1;
  bool dmabuf = true;
  bool ipc = true;
  bool free_waits = false;  ///< for the end of all pins
  std::condition_variable unpinned;
  std::string released_in;  ///< the function during which a primary context is released
  int ordering = 0;         ///< CU_GPU_DIRECT_RDMA_WRITES_ORDERING_*
  uint64_t next_buffer_id = 1;
  std::map<uintptr_t, Allocation> allocations;  ///< by base
  std::map<size_t, uintptr_t> freed;  ///< size → address: given out again, as a driver likes to
  std::map<PhysicalMemory, Physical> physical;
  std::map<uintptr_t, Reservation> reserved;  ///< by address
  PhysicalMemory next_physical = 1;
  ContextState primary[kMaxDevices];
  StreamState null_stream;
  std::map<Stream, std::unique_ptr<StreamState>> streams;
  std::map<std::string, unsigned long> calls;
  std::vector<Fault> faults;

  State();
  /// The allocation that holds [pointer, +length), or null.
  Allocation* find(uintptr_t pointer, size_t length);
  /// Where the device sees [pointer, +length), of neighbouring mappings, too; null: nowhere, or the
  /// device may not. -1: as whoever may.
  std::byte* bytes(uintptr_t pointer, size_t length, Device reader = -1);
};

State& state();

enum class Needs { nothing, initialized, context };
/// Counts a call and says how it is to fail; kSuccess: go on. Takes the mutex itself.
Result enter(const char* function, Needs needs);

/// The context stack of this thread; null = none.
ContextState* current_context();

}  // namespace softcuda
