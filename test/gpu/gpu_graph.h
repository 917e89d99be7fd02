#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "gpu_driver.h"

namespace gpu {

using Graph = void*;      ///< CUgraph
using GraphExec = void*;  ///< CUgraphExec

/// Executes functions in a thread of its own, one at a time.
class Worker {
 public:
  Worker() : x_thread([this] { serve(); }) {}
  ~Worker() {
    run([this] { x_over = true; });
    x_thread.join();
  }
  /// Returns when the thread has executed the function.
  void run(const std::function<void()>& what) {
    std::unique_lock guard(x_mutex);
    x_what = &what;
    x_changed.notify_all();
    x_changed.wait(guard, [this] { return !x_what; });
  }

 private:
  void serve() {
    std::unique_lock guard(x_mutex);
    while (!x_over) {
      x_changed.wait(guard, [this] { return x_what; });
      (*x_what)();
      x_what = nullptr;
      x_changed.notify_all();
    }
  }
  std::mutex x_mutex;
  std::condition_variable x_changed;
  const std::function<void()>* x_what = nullptr;
  bool x_over = false;
  std::thread x_thread;
};

/// A capture of two copies in a stream, and the graph that it gives: the bytes of one piece of
/// device memory go to a second and from there to a third.
class Capture {
 public:
  static constexpr size_t kBytes = 64 << 10;

  explicit Capture(Driver& driver) : x_driver(driver) {
    Result (*stream)(Stream*, unsigned);
    driver.find(stream, "cuStreamCreate");
    driver.find(x_begin, "cuStreamBeginCapture_v2", 77);
    driver.find(x_end, "cuStreamEndCapture", 77);
    driver.find(x_make, "cuGraphInstantiateWithFlags", 77);
    driver.find(x_launch, "cuGraphLaunch", 77);
    driver.find(x_copy, "cuMemcpyAsync");
    driver.find(x_wait, "cuStreamSynchronize");
    driver.must(stream(&x_stream, kStreamNonBlocking), "cuStreamCreate");
    for (DevicePointer& one : x_memory) one = driver.allocate(kBytes);
  }
  void begin(CaptureMode mode = kCaptureGlobal) {
    x_driver.enter();
    x_graph = nullptr;
    x_driver.must(x_begin(x_stream, mode), "cuStreamBeginCapture");
    x_driver.must(x_copy(x_memory[1], x_memory[0], kBytes, x_stream), "captured cuMemcpyAsync");
  }
  /// Returns 0, or the first error of the second copy and of the end of the capture.
  Result end() {
    const Result copied = x_copy(x_memory[2], x_memory[1], kBytes, x_stream);
    const Result ended = x_end(x_stream, &x_graph);
    return copied ? copied : ended;
  }
  /// True if the graph, executed twice, copies what the memory contains each time.
  bool replays() {
    GraphExec made = nullptr;
    if (!x_graph || x_make(&made, x_graph, 0)) return false;
    for (const char fill : {'r', 's'}) {
      x_driver.put(x_memory[0], std::vector<char>(kBytes, fill));
      if (x_launch(made, x_stream) || x_wait(x_stream)) return false;
      if (x_driver.get(x_memory[2], kBytes) != std::vector<char>(kBytes, fill)) return false;
    }
    return true;
  }

 private:
  Driver& x_driver;
  Stream x_stream = nullptr;
  Graph x_graph = nullptr;
  DevicePointer x_memory[3];
  Result (*x_begin)(Stream, int);
  Result (*x_end)(Stream, Graph*);
  Result (*x_make)(GraphExec*, Graph, unsigned long long);
  Result (*x_launch)(GraphExec, Stream);
  Result (*x_copy)(DevicePointer, DevicePointer, size_t, Stream);
  Result (*x_wait)(Stream);
};

}  // namespace gpu
