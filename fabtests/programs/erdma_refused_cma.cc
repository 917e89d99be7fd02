// erdma_refused_cma: messages, reads and writes of all sizes, both ways at once, while the kernel
// refuses process_vm_readv(2) or process_vm_writev(2), or both, to one side or both. Every byte is
// checked.
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "exchange.h"
#include "path_bytes.h"
#include "refuse_calls.h"

using namespace erdma::programs;

namespace {

struct Refusal {
  std::string calls = "readv,writev";
  std::string sides = "both";
  int error = EPERM;
  bool at(Side side) const {
    return sides == "both" || sides == (side == Side::server ? "server" : "client");
  }
};

/// Whether the kernel refuses, asked with a byte of our own.
bool refused(bool write, int error) {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  const ssize_t rc = write ? ::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0)
                           : ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
  return rc < 0 && errno == error;
}

void refuse(const Refusal& refusal) {
  if (refuse_calls(refusal.calls.c_str(), unsigned(refusal.error)) != 0) {
    not_supported("seccomp: %s", std::strerror(errno));
  }
  for (const bool write : {false, true}) {
    const char* call = write ? "writev" : "readv";
    if (refusal.calls.find(call) == std::string::npos) continue;
    if (!refused(write, refusal.error)) fail("process_vm_%s is not refused", call);
  }
}

/// What one side counted must not contradict what its kernel permitted.
bool contradicts(const Refusal& refusal, Side side, const PathBytes& bytes) {
  if (!bytes.told || !refusal.at(side)) return false;
  return (refusal.calls.find("readv") != std::string::npos && bytes.cma_read > 0) ||
         (refusal.calls.find("writev") != std::string::npos && bytes.cma_write > 0);
}

int take_part(const Options& options, const Refusal& refusal, Side side, Channel& channel) {
  if (refusal.at(side)) refuse(refusal);
  listen_to_log();
  Exchange exchange(options, side, channel, FI_TAGGED | FI_RMA);
  const int iterations = options.iterations ? options.iterations : 1;
  for (const size_t size : options.sizes) {
    exchange.messages(size, iterations);
    exchange.reads(size, iterations);
    exchange.writes(size, iterations);
  }
  exchange.barrier();
  exchange.endpoint().close();

  const PathBytes own = bytes_told();
  if (contradicts(refusal, side, own)) fail("bytes went by a call that the kernel refuses");
  const PathBytes both = bytes_of_both(channel);
  if (side == Side::client) {
    std::printf("%" PRIu64 " messages, reads and writes of %" PRIu64
                " bytes each way, every byte checked\n",
                exchange.operations(), exchange.bytes());
    both.print("both sides");
  }
  return kPassed;
}

}  // namespace

int main(int argc, char** argv) {
  Refusal refusal;
  Program program{"Messages, reads and writes of all sizes where the kernel refuses CMA.", 4 << 20,
                  false};
  program.extras = {{"refuse", "CALLS", "readv, writev, readv,writev (default) or none",
                     [&](const char* value) {
                       refusal.calls = value;
                       return refusal.calls == "readv" || refusal.calls == "writev" ||
                              refusal.calls == "readv,writev" || refusal.calls == "none";
                     }},
                    {"side", "SIDE", "server, client or both (default): where they are refused",
                     [&](const char* value) {
                       refusal.sides = value;
                       return refusal.sides == "server" || refusal.sides == "client" ||
                              refusal.sides == "both";
                     }},
                    {"errno", "ERROR", "EPERM (default) or ENOSYS", [&](const char* value) {
                       refusal.error = std::strcmp(value, "ENOSYS") == 0 ? ENOSYS : EPERM;
                       return refusal.error == ENOSYS || std::strcmp(value, "EPERM") == 0;
                     }}};
  const Options options = parse(argc, argv, program);
  return run_sides(options, [&](Side side, Channel& channel) {
    return take_part(options, refusal, side, channel);
  });
}
