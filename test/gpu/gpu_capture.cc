// gpu_capture check PROVIDER BYTES [warm|cold] [other|same|none]
// Two processes exchange a message in GPU memory in each direction while each of them captures a
// CUDA graph: another thread does, in the mode in which calls of all threads count, or the thread
// that makes the progress does ("same"), or none ("none"). "cold": no message has gone before, and
// the memory is registered during the capture. Checks that the messages arrive, and that the
// captures give graphs that work.
//
// gpu_capture calls
// Prints what single calls of the driver do to a capture of another thread, and what they return,
// in a thread of the default mode and in one of the relaxed mode; and what the calls cost.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "gpu_endpoint.h"
#include "gpu_graph.h"
#include "hmem/cuda_functions.h"

namespace {

using namespace gpu;
using namespace std::chrono_literals;

struct Outcome {
  int message = 0;  ///< 0, an fi_errno, or -1: other bytes than were sent
  Result ended = 0;
  bool replayed = true;
};

/// Messages of one process, in both directions.
class Exchange {
 public:
  Exchange(Endpoint& ep, Driver& driver, bool second, size_t length)
      : x_ep(ep),
        x_driver(driver),
        x_second(second),
        x_length(length),
        x_out(driver.allocate(length)),
        x_in(driver.allocate(length)) {}
  /// Fills the memory for the next messages.
  void fill(int seed) {
    x_seed = seed;
    x_driver.put(x_out, pattern(x_length, seed + x_second));
    x_driver.put(x_in, std::vector<char>(x_length, '-'));
  }
  void enroll() {
    x_out_desc = x_ep.descriptor(memory_at(x_out), x_length, true);
    x_in_desc = x_ep.descriptor(memory_at(x_in), x_length, true);
  }
  /// The second process answers. Returns 0 or an fi_errno.
  int run(std::chrono::seconds at_most) {
    x_ep.receive(memory_at(x_in), x_length, 1, x_in_desc);
    if (x_second)
      if (const int error = x_ep.wait_for(1, at_most)) return error;
    x_ep.send(memory_at(x_out), x_length, 1, x_out_desc);
    return x_ep.wait_for(x_second ? 1 : 2, at_most);
  }
  bool arrived() { return x_driver.get(x_in, x_length) == pattern(x_length, x_seed + !x_second); }

 private:
  Endpoint& x_ep;
  Driver& x_driver;
  const bool x_second;
  const size_t x_length;
  int x_seed = 0;
  const DevicePointer x_out, x_in;
  void* x_out_desc = nullptr;
  void* x_in_desc = nullptr;
};

std::string describe(const Outcome& one) {
  std::string text = "message ";
  if (one.message == 0)
    text += "ok";
  else
    text += one.message < 0 ? "has wrong bytes" : "failed: " + std::to_string(one.message);
  if (one.ended) return text + ", capture failed: CUDA error " + std::to_string(one.ended);
  return text + ", capture ok, " + (one.replayed ? "replay ok" : "replay failed");
}

int check(const char* provider, size_t length, bool warm, const std::string& who) {
  Pipes pipes;
  Driver driver(pipes.second() ? 1 : 0);
  Endpoint ep(provider);
  ep.meet(pipes.exchange(ep.name()));
  Capture capture(driver);
  Worker other;
  const auto capturing = [&](const std::function<void()>& what) {
    if (who == "other") other.run(what);
    if (who == "same") what();
  };
  const auto barrier = [&] { pipes.exchange({'.'}); };
  Exchange messages(ep, driver, pipes.second(), length);
  Outcome mine;
  if (warm) {
    messages.fill(1);
    messages.enroll();
    mine.message = messages.run(20s);
    if (!mine.message && !messages.arrived()) mine.message = -1;
  }
  messages.fill(2);
  barrier();
  capturing([&] { capture.begin(); });
  barrier();
  if (!warm) messages.enroll();
  if (!mine.message) mine.message = messages.run(3s);
  barrier();  // a process that ends its capture would let the other one's progress go on
  capturing([&] { mine.ended = capture.end(); });
  driver.enter();
  if (!mine.message && !messages.arrived()) mine.message = -1;
  mine.replayed = who == "none" || capture.replays();
  std::vector<char> bytes(sizeof(mine));
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  bytes = pipes.exchange(bytes);
  Outcome theirs;
  std::memcpy(&theirs, bytes.data(), sizeof(theirs));
  bool ok = true;
  for (const Outcome& one : {mine, theirs}) ok = ok && !one.message && !one.ended && one.replayed;
  if (!pipes.second()) {
    std::printf("%s %zu bytes, %s, capture by %s: %s", ok ? "PASS" : "FAIL", length,
                warm ? "warm" : "cold", who.c_str(), describe(mine).c_str());
    if (describe(mine) != describe(theirs))
      std::printf(" | other process: %s", describe(theirs).c_str());
    std::puts("");
    std::fflush(stdout);
  }
  // Objects of CUDA and of the provider whose operations failed may not be closable.
  pipes.exchange({'.'});
  std::fflush(nullptr);
  _exit(ok ? 0 : 1);
}

// --- single calls -------------------------------------------------------------------------------

/// A call; what it needs is made before the capture begins, and undone when the capture has ended.
struct Probe {
  const char* name;
  std::function<Result()> call;
  std::function<void()> before = [] {};
  std::function<void(Result)> after = [](Result) {};
};

class Calls {
 public:
  Calls(Driver& driver, IpcMemHandle theirs)
      : x_driver(driver), x_capture(driver), x_theirs(theirs), x_bytes(1 << 20) {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (const char* missing = x_api.look_up(library)) std::printf("no %s\n", missing);
    driver.find(x_exchange, "cuThreadExchangeStreamCaptureMode", 77);
    driver.find(x_destroy, "cuStreamDestroy_v2");
    driver.find(x_query, "cuStreamQuery");
    driver.find(x_to_device, "cuMemcpyHtoD_v2");
    driver.find(x_synchronize, "cuCtxSynchronize");
    driver.find(x_create, "cuMemCreate");
    x_memory = driver.allocate(x_bytes.size());
    x_memory_too = driver.allocate(x_bytes.size());
    driver.must(x_api.cuStreamCreate(&x_stream, kStreamNonBlocking), "cuStreamCreate");
    driver.must(x_api.cuCtxGetCurrent(&x_context), "cuCtxGetCurrent");
    const MemAllocationProperties wanted{
        kMemoryPinned, kHandlePosixFd, {kLocationDevice, 0}, {}, {}};
    driver.must(x_create(&x_physical, kPiece, &wanted, 0), "cuMemCreate");
  }
  void run() {
    std::printf("%-40s %9s %9s   %9s %9s\n", "call", "default", "capture", "relaxed", "capture");
    for (const Probe& one : probes()) {
      std::printf("%-40s", one.name);
      for (const CaptureMode mode : {kCaptureGlobal, kCaptureRelaxed}) {
        const auto [returned, ended] = try_one(one, mode);
        std::printf(" %9d %9d  ", returned, ended);
      }
      std::puts("");
    }
    time("cuThreadExchangeStreamCaptureMode, twice", [&] {
      int mode = kCaptureRelaxed;
      x_exchange(&mode);
      x_exchange(&mode);
    });
    time("cuPointerGetAttribute", [&] { x_api.kind_of(memory_at(x_memory)); });
  }

 private:
  static constexpr size_t kPiece = size_t(2) << 20;

  std::pair<Result, Result> try_one(const Probe& one, CaptureMode mode) {
    std::pair<Result, Result> result;
    one.before();
    x_other.run([&] { x_capture.begin(); });
    int swapped = mode;
    x_exchange(&swapped);
    result.first = one.call();
    x_exchange(&swapped);
    x_other.run([&] { result.second = x_capture.end(); });
    x_api.cuStreamSynchronize(x_stream);
    one.after(result.first);
    return result;
  }
  Result copy(DevicePointer to, DevicePointer from, size_t length) {
    const Result rc = x_api.cuMemcpyAsync(to, from, length, x_stream);
    return rc ? rc : x_api.cuStreamSynchronize(x_stream);
  }
  void time(const char* what, const std::function<void()>& call) {
    constexpr int kTimes = 200'000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    std::printf("%s: %.1f ns\n", what, took.count() / kTimes);
  }
  void close_file() {
    if (x_file >= 0) close(x_file);
    x_file = -1;
  }
  std::vector<Probe> probes() {
    const auto host = address_of(x_bytes.data());
    const auto reserve = [this] {
      x_driver.must(x_api.cuMemAddressReserve(&x_at, kPiece, 0, 0, 0), "cuMemAddressReserve");
    };
    const auto map = [=, this] {
      reserve();
      x_driver.must(x_api.cuMemMap(x_at, kPiece, 0, x_physical, 0), "cuMemMap");
    };
    const auto unreserve = [this](Result) { x_api.cuMemAddressFree(x_at, kPiece); };
    const auto unmap = [=, this](Result) {
      x_api.cuMemUnmap(x_at, kPiece);
      unreserve(0);
    };
    const auto open_theirs = [this] {
      return x_api.cuIpcOpenMemHandle_v2(&x_opened, x_theirs, kIpcLazyPeerAccess);
    };
    const auto release = [this](Result rc) {
      if (!rc) x_api.cuMemRelease(x_retained);
    };
    return {
        {"nothing", [] { return 0; }},
        {"cuInit", [&] { return x_api.cuInit(0); }},
        {"cuPointerGetAttribute, device memory",
         [&] { return x_api.device_of(memory_at(x_memory)) < 0; }},
        {"cuPointerGetAttribute, host memory",
         [&] { return x_api.kind_of(x_bytes.data()) == MemoryKind::unknown; }},
        {"cuPointerGetAttributes", [&] { return x_api.facts_of(memory_at(x_memory)).id == 0; }},
        {"cuPointerSetAttribute",
         [&] {
           const unsigned on = 1;
           if (!x_api.cuPointerSetAttribute) return -1;
           return x_api.cuPointerSetAttribute(&on, kPointerSyncMemops, x_memory);
         }},
        {"cuDeviceGetAttribute",
         [&] {
           int value = 0;
           return x_api.cuDeviceGetAttribute(&value, kDeviceWritesOrdering, 0);
         }},
        {"cuMemGetAddressRange",
         [&] {
           size_t size = 0;
           return x_api.cuMemGetAddressRange_v2(&x_at, &size, x_memory);
         }},
        {"cuCtxPushCurrent, cuCtxPopCurrent",
         [&] {
           const Result rc = x_api.cuCtxPushCurrent_v2(x_context);
           return rc ? rc : x_api.cuCtxPopCurrent_v2(nullptr);
         }},
        {"cuDevicePrimaryCtxGetState",
         [&] {
           unsigned flags = 0;
           int active = 0;
           return x_api.cuDevicePrimaryCtxGetState(0, &flags, &active);
         }},
        {"cuDevicePrimaryCtxRetain, Release",
         [&] {
           Context context = nullptr;
           const Result rc = x_api.cuDevicePrimaryCtxRetain(&context, 0);
           return rc ? rc : x_api.cuDevicePrimaryCtxRelease_v2(0);
         }},
        {"cuStreamCreate", [&] { return x_api.cuStreamCreate(&x_made, kStreamNonBlocking); }, [] {},
         [&](Result rc) {
           if (!rc) x_destroy(x_made);
         }},
        {"cuStreamQuery", [&] { return x_query(x_stream); }},
        {"cuStreamSynchronize", [&] { return x_api.cuStreamSynchronize(x_stream); }},
        {"cuMemcpyAsync, device to device",
         [&] { return x_api.cuMemcpyAsync(x_memory, x_memory_too, 1 << 20, x_stream); }},
        {"cuMemcpyAsync, 8 bytes to host",
         [=, this] { return x_api.cuMemcpyAsync(host, x_memory, 8, x_stream); }},
        {"cuMemcpyAsync, 8 bytes from host",
         [=, this] { return x_api.cuMemcpyAsync(x_memory, host, 8, x_stream); }},
        {"cuMemcpyAsync, 1 MiB to host",
         [=, this] { return x_api.cuMemcpyAsync(host, x_memory, 1 << 20, x_stream); }},
        {"cuMemcpyAsync, 1 MiB from host",
         [=, this] { return x_api.cuMemcpyAsync(x_memory, host, 1 << 20, x_stream); }},
        {"the same with cuStreamSynchronize", [=, this] { return copy(x_memory, host, 1 << 20); }},
        {"cuMemcpyHtoD", [&] { return x_to_device(x_memory, x_bytes.data(), 8); }},
        {"cuCtxSynchronize", [&] { return x_synchronize(); }},
        {"cuMemAlloc", [&] { return x_api.cuMemAlloc_v2(&x_at, 4096); }, [] {},
         [&](Result rc) {
           if (!rc) x_api.cuMemFree_v2(x_at);
         }},
        {"cuMemFree", [&] { return x_api.cuMemFree_v2(x_at); },
         [&] { x_driver.must(x_api.cuMemAlloc_v2(&x_at, 4096), "cuMemAlloc"); },
         [&](Result rc) {
           if (rc) x_api.cuMemFree_v2(x_at);
         }},
        {"cuIpcGetMemHandle",
         [&] {
           IpcMemHandle handle;
           return x_api.cuIpcGetMemHandle(&handle, x_memory);
         }},
        {"cuIpcOpenMemHandle", open_theirs, [] {},
         [&](Result rc) {
           if (!rc) x_api.cuIpcCloseMemHandle(x_opened);
         }},
        {"cuIpcCloseMemHandle", [&] { return x_api.cuIpcCloseMemHandle(x_opened); },
         [=, this] { x_driver.must(open_theirs(), "cuIpcOpenMemHandle"); },
         [&](Result rc) {
           if (rc) x_api.cuIpcCloseMemHandle(x_opened);
         }},
        {"cuMemGetHandleForAddressRange",
         [&] {
           if (!x_api.cuMemGetHandleForAddressRange) return -1;
           return x_api.cuMemGetHandleForAddressRange(&x_file, x_memory, x_bytes.size(),
                                                      kRangeHandleDmabufFd, 0);
         },
         [] {}, [&](Result) { close_file(); }},
        {"cuMemAddressReserve", [&] { return x_api.cuMemAddressReserve(&x_at, kPiece, 0, 0, 0); },
         [] {},
         [=](Result rc) {
           if (!rc) unreserve(0);
         }},
        {"cuMemMap", [&] { return x_api.cuMemMap(x_at, kPiece, 0, x_physical, 0); }, reserve,
         unmap},
        {"cuMemSetAccess",
         [&] {
           const MemAccess access{{kLocationDevice, 0}, kAccessReadWrite};
           return x_api.cuMemSetAccess(x_at, kPiece, &access, 1);
         },
         map, unmap},
        {"cuMemRetainAllocationHandle",
         [&] { return x_api.cuMemRetainAllocationHandle(&x_retained, memory_at(x_at)); }, map,
         [=](Result rc) {
           release(rc);
           unmap(0);
         }},
        {"cuMemGetAllocationPropertiesFromHandle",
         [&] {
           MemAllocationProperties found{};
           return x_api.cuMemGetAllocationPropertiesFromHandle(&found, x_physical);
         }},
        {"cuMemUnmap", [&] { return x_api.cuMemUnmap(x_at, kPiece); }, map, unmap},
        {"cuMemAddressFree", [&] { return x_api.cuMemAddressFree(x_at, kPiece); }, reserve,
         [=](Result rc) {
           if (rc) unreserve(0);
         }},
        {"cuMemExportToShareableHandle",
         [&] { return x_api.cuMemExportToShareableHandle(&x_file, x_physical, kHandlePosixFd, 0); },
         [] {}, [&](Result) { close_file(); }},
        {"cuMemImportFromShareableHandle",
         [&] {
           return x_api.cuMemImportFromShareableHandle(
               &x_retained, memory_at(DevicePointer(x_file)), kHandlePosixFd);
         },
         [&] { x_api.cuMemExportToShareableHandle(&x_file, x_physical, kHandlePosixFd, 0); },
         [=, this](Result rc) {
           release(rc);
           close_file();
         }},
    };
  }

  Driver& x_driver;
  Functions x_api{};
  Worker x_other;
  Capture x_capture;
  const IpcMemHandle x_theirs;
  std::vector<char> x_bytes;
  DevicePointer x_memory = 0, x_memory_too = 0, x_at = 0, x_opened = 0;
  Stream x_stream = nullptr, x_made = nullptr;
  Context x_context = nullptr;
  PhysicalMemory x_physical = 0, x_retained = 0;
  int x_file = -1;
  Result (*x_exchange)(int*);
  Result (*x_destroy)(Stream);
  Result (*x_query)(Stream);
  Result (*x_to_device)(DevicePointer, const void*, size_t);
  Result (*x_synchronize)();
  Result (*x_create)(PhysicalMemory*, size_t, const MemAllocationProperties*, unsigned long long);
};

int print_calls() {
  Pipes pipes;
  Driver driver(0);
  const DevicePointer memory = driver.allocate(4096);
  Result (*share)(IpcMemHandle*, DevicePointer);
  driver.find(share, "cuIpcGetMemHandle");
  IpcMemHandle handle{};
  driver.must(share(&handle, memory), "cuIpcGetMemHandle");
  const auto theirs =
      pipes.exchange(std::vector<char>(handle.reserved, handle.reserved + sizeof(handle.reserved)));
  std::copy(theirs.begin(), theirs.end(), handle.reserved);
  if (!pipes.second()) {
    Calls(driver, handle).run();
    std::fflush(stdout);
  }
  pipes.exchange({'.'});
  return pipes.finish(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  if (what == "calls") return print_calls();
  if (what == "check" && argc >= 4)
    return check(argv[2], std::strtoul(argv[3], nullptr, 0), argument(4, "warm") == "warm",
                 argument(5, "other"));
  std::fputs("gpu_capture check PROVIDER BYTES [warm|cold] [other|same|none] | calls\n", stderr);
  return 64;
}
