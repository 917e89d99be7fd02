// erdma_paths: messages, reads or writes, and which way their bytes went.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "exchange.h"
#include "path_bytes.h"

using namespace erdma::programs;

namespace {

struct Wanted {
  std::string operation = "message";
  std::string path;  ///< --expect; empty: any
  double share = 100;
};

bool take_path(Wanted& wanted, const char* value) {
  wanted.path = value;
  for (const char* path : {"shm", "rings", "cma", "copy", "nic"}) {
    if (wanted.path == path) return true;
  }
  return false;
}

uint64_t carried(const PathBytes& bytes, const std::string& path) {
  if (path == "rings") return bytes.rings;
  if (path == "cma") return bytes.cma();
  if (path == "copy") return bytes.copied;
  return path == "nic" ? bytes.nic() : bytes.shm();
}

int judge(const Wanted& wanted, const PathBytes& both, uint64_t payload) {
  if (wanted.path.empty()) return kPassed;
  if (!both.told) not_supported("--expect: this provider does not tell which way the bytes went");
  const uint64_t found = carried(both, wanted.path);
  std::printf("%s carried %" PRIu64 " of %" PRIu64 " bytes\n", wanted.path.c_str(), found, payload);
  if (double(found) < double(payload) * wanted.share / 100 || found == 0) {
    fail("expected was at least %g %%", wanted.share);
  }
  return kPassed;
}

int take_part(const Options& options, const Wanted& wanted, Side side, Channel& channel) {
  listen_to_log();
  const bool rma = wanted.operation != "message";
  Exchange exchange(options, side, channel, FI_TAGGED | (rma ? FI_RMA : 0));
  const std::string device = exchange.endpoint().info().domain_attr->name;
  const auto before = nic_sent(device);
  const int iterations = options.iterations ? options.iterations : 4;
  for (const size_t size : options.sizes) {
    if (!rma) {
      exchange.messages(size, iterations);
    } else if (wanted.operation == "read") {
      exchange.reads(size, iterations);
    } else {
      exchange.writes(size, iterations);
    }
  }
  exchange.barrier();
  const auto after = nic_sent(device);
  exchange.endpoint().close();

  const PathBytes both = bytes_of_both(channel);
  if (side == Side::server) return kPassed;
  std::printf("%" PRIu64 " times %s, %" PRIu64 " bytes each way, every byte checked\n",
              exchange.operations(), wanted.operation.c_str(), exchange.bytes());
  bytes_told().print("client");
  both.print("both sides");
  if (before && after) {
    std::printf("%s itself counts %" PRIu64 " bytes sent meanwhile, by any process\n",
                device.c_str(), *after - *before);
  }
  return judge(wanted, both, 2 * exchange.bytes());
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted;
  Program program{"Messages, reads or writes, and which way their bytes went.", 1 << 20, false};
  program.extras = {
      {"operation", "OPERATION", "message (default), read or write",
       [&](const char* value) {
         wanted.operation = value;
         return wanted.operation == "message" || wanted.operation == "read" ||
                wanted.operation == "write";
       }},
      {"expect", "PATH",
       "fail unless the bytes went by this path: nic, shm, or of shared memory rings, cma, copy",
       [&](const char* value) { return take_path(wanted, value); }},
      {"share", "PERCENT", "how many of them must have done so (100)", [&](const char* value) {
         wanted.share = std::atof(value);
         return wanted.share > 0 && wanted.share <= 100;
       }}};
  const Options options = parse(argc, argv, program);
  return run_sides(options, [&](Side side, Channel& channel) {
    return take_part(options, wanted, side, channel);
  });
}
