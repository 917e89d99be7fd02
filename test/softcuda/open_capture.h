#pragma once

#include <future>
#include <thread>

#include "libcheck.h"
#include "softcuda/driver.h"

namespace erdma::test {

/// A capture of a stream of the simulated GPU by another thread, in the mode in which unsafe calls
/// of any thread end it. The calling thread needs a context.
class OpenCapture {
 public:
  OpenCapture() {
    Context context = nullptr;
    Stream stream = nullptr;
    ck_assert_int_eq(cuCtxGetCurrent(&context), 0);
    ck_assert_int_eq(cuStreamCreate(&stream, 0), 0);
    std::promise<void> begun;
    x_thread = std::thread([=, this, &begun] {
      ck_assert_int_eq(cuCtxSetCurrent(context), 0);
      ck_assert_int_eq(cuStreamBeginCapture_v2(stream, hmem::cuda_api::kCaptureGlobal), 0);
      begun.set_value();
      x_ending.get_future().wait();
      x_result = cuStreamEndCapture(stream, &x_graph);
    });
    begun.get_future().wait();
  }
  OpenCapture(const OpenCapture&) = delete;
  OpenCapture& operator=(const OpenCapture&) = delete;
  ~OpenCapture() {
    if (x_thread.joinable()) end();
    if (x_graph) cuGraphDestroy(x_graph);
  }
  /// Returns what cuStreamEndCapture() returns.
  Result end() {
    x_ending.set_value();
    x_thread.join();
    return x_result;
  }

 private:
  std::promise<void> x_ending;
  std::thread x_thread;
  Graph x_graph = nullptr;
  Result x_result = 0;
};

}  // namespace erdma::test
