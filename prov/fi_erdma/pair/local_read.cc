#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "fi_erdma/pair/memory.h"
#include "fi_erdma/pair/path_bytes.h"
#include "fi_erdma/pair/tests.h"

namespace fi_erdma::pair {
namespace {

constexpr size_t kGuard = 8;  ///< bytes behind the read data, which must not change

class LocalRead {
 public:
  explicit LocalRead(const Options& options, size_t burst)
      : x_options(options),
        x_endpoint(options, FI_MSG | FI_RMA),
        x_self(x_endpoint.insert(x_endpoint.name())),
        x_size(std::max({std::ranges::max(options.sizes), burst * 8, size_t{1}})),
        x_source(x_endpoint, x_size, FI_REMOTE_READ,
                 options.memory == "cuda" ? FI_HMEM_CUDA : FI_HMEM_SYSTEM) {
    x_source.fill(0, x_size, kSource);
    if (options.spoil) x_source.spoil(0);
  }
  void run(int iterations, size_t burst, fi_hmem_iface into);
  uint64_t reads() const noexcept { return x_reads; }

 private:
  static constexpr uint64_t kSource = 1, kBefore = 2;

  void read(Buffer& into, size_t offset, size_t size, Operation& operation);
  void expect(Operation& operation, size_t size);
  void one(Buffer& into, size_t size);
  void many(Buffer& into, size_t count);

  const Options& x_options;
  Endpoint x_endpoint;
  const fi_addr_t x_self;
  const size_t x_size;
  Buffer x_source;
  uint64_t x_reads = 0;
};

void LocalRead::read(Buffer& into, size_t offset, size_t size, Operation& operation) {
  const ssize_t rc = fi_read(x_endpoint.ep(), into.at(offset), size, into.desc(), x_self,
                             x_source.remote(offset), x_source.key(), &operation);
  if (rc == -FI_EAGAIN) fail("fi_read of %zu bytes: -FI_EAGAIN (after %" PRIu64 ")", size, x_reads);
  must(rc, "fi_read");
  ++x_reads;
}

void LocalRead::expect(Operation& operation, size_t size) {
  x_endpoint.finish(operation, "fi_read");
  constexpr uint64_t kFlags = FI_READ | FI_RMA;
  if ((operation.flags & kFlags) != kFlags) {
    fail("%zu bytes: the completion has flags %#" PRIx64 ", not FI_READ|FI_RMA", size,
         operation.flags);
  }
}

void LocalRead::one(Buffer& into, size_t size) {
  Operation operation;
  into.fill(0, size, kBefore);
  into.fill(size, kGuard, kBefore);
  read(into, 0, size, operation);
  expect(operation, size);
  const ptrdiff_t wrong = into.first_wrong(0, size, kSource);
  if (wrong >= 0) fail("%zu bytes: complete, but byte %td is wrong", size, wrong);
  if (into.first_wrong(size, kGuard, kBefore) >= 0) fail("%zu bytes: more was written", size);
  for (int i = 0; i < 100; ++i) x_endpoint.progress();  // a second completion would end the process
}

/// Posts more reads than a transmit queue holds, without progress in between.
void LocalRead::many(Buffer& into, size_t count) {
  std::deque<Operation> operations(count);
  into.fill(0, count * 8, kBefore);
  for (size_t i = 0; i < count; ++i) read(into, i * 8, 8, operations[i]);
  for (Operation& operation : operations) expect(operation, 8);
  if (into.first_wrong(0, count * 8, kSource) >= 0) fail("%zu reads: wrong data", count);
}

void LocalRead::run(int iterations, size_t burst, fi_hmem_iface iface) {
  Buffer into(x_endpoint, x_size + kGuard, 0, iface);
  for (const size_t size : x_options.sizes) {
    for (int i = 0; i < iterations; ++i) one(into, size);
  }
  if (burst > 0) many(into, burst);
}

/// Runs in a process of its own, like every side.
int read_own_memory(const TestOptions& options) {
  const bool into_device = options.into == "device";
  LocalRead test(options, options.burst);
  test.run(options.iterations ? options.iterations : 3, options.burst,
           into_device ? FI_HMEM_CUDA : FI_HMEM_SYSTEM);
  std::printf("%" PRIu64 " reads of %s memory, each complete once and with its bytes\n",
              test.reads(), options.memory.c_str());
  bytes_told().print("this endpoint");
  return kPassed;
}

}  // namespace

int test_local_read(TestOptions options) {
  if (options.sizes.empty()) options.sizes = all_sizes(4 << 20);
  return run_alone([&] { return read_own_memory(options); });
}

}  // namespace fi_erdma::pair
