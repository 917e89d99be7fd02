#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/pair/path_bytes.h"
#include "fi_erdma/pair/refuse_calls.h"
#include "fi_erdma/pair/tests.h"

namespace fi_erdma::pair {
namespace {

bool refuses_at(const TestOptions& options, Side side) {
  return options.side == "both" || options.side == (side == Side::server ? "server" : "client");
}

/// Whether the kernel refuses the call, tried with a byte of this process.
bool refused(bool write, int error) {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  const ssize_t rc = write ? ::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0)
                           : ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
  return rc < 0 && errno == error;
}

void refuse(const TestOptions& options) {
  const int error = options.error == "ENOSYS" ? ENOSYS : EPERM;
  if (refuse_calls(options.calls.c_str(), unsigned(error)) != 0)
    not_supported("seccomp: %s", std::strerror(errno));
  for (const bool write : {false, true}) {
    const char* call = write ? "writev" : "readv";
    if (options.calls.find(call) == std::string::npos) continue;
    if (!refused(write, error)) fail("process_vm_%s is not refused", call);
  }
}

/// The counters of one side must not contradict what the kernel permitted it.
bool contradicts(const TestOptions& options, Side side, const PathBytes& bytes) {
  if (!bytes.told || !refuses_at(options, side)) return false;
  return (options.calls.find("readv") != std::string::npos && bytes.cma_read > 0) ||
         (options.calls.find("writev") != std::string::npos && bytes.cma_write > 0);
}

constexpr int kRounds = 1;  ///< rounds of each size

int rounds(const TestOptions& options) {
  return options.iterations ? options.iterations : kRounds;
}

int refused_side(const TestOptions& options, Side side, Channel& channel) {
  if (refuses_at(options, side)) refuse(options);
  Exchange exchange(options, side, channel, FI_TAGGED | FI_RMA);
  for (const size_t size : options.sizes)
    for (const auto kind : {Exchange::Kind::message, Exchange::Kind::read, Exchange::Kind::write})
      exchange.compared(kind, size, rounds(options));
  exchange.barrier();
  if (contradicts(options, side, bytes_told()))
    fail("bytes went by a call that the kernel refuses");
  const PathBytes both = bytes_of_both(channel, exchange.drive());
  if (side == Side::server) return kPassed;
  std::printf("%" PRIu64 " messages, reads and writes of %" PRIu64
              " bytes each way, every byte checked\n",
              exchange.operations(), exchange.bytes());
  both.print("both sides");
  return kPassed;
}

}  // namespace

int test_refused_cma(TestOptions options) {
  if (options.sizes.empty()) options.sizes = all_sizes(4 << 20);
  const std::string task = "test refused-cma: " + options.calls + " with " + options.error +
                           " at " + options.side + ", " + std::to_string(rounds(options)) +
                           " times " + sizes_text(options);
  return run_sides(task, options, [&](Side side, Channel& channel) {
    return refused_side(options, side, channel);
  });
}

}  // namespace fi_erdma::pair
