#include "fabric/endpoint_summary.h"

#include <cstdio>

#include "util/notice.h"

namespace erdma::fabric {
namespace {

std::string speed_text(uint64_t bits_per_second) {
  if (!bits_per_second) return {};
  char text[32];
  std::snprintf(text, sizeof(text), ", %g Gbit/s", double(bits_per_second) / 1e9);
  return text;
}

using util::Cause;

/// The code of the cause, which is a heading of docs/troubleshooting.md.
std::string code(Cause cause) {
  return std::string(" [") + util::code_of(cause) + "]";
}

std::string between_hosts(const EndpointFacts& facts) {
  if (!facts.nic) return "none, there is no NIC";
  if (!facts.no_zero_copy)
    return std::string("RDMA, zero copy") +
           (facts.each_time ? " from 256 KiB on" + code(Cause::zero_copy) + " (no userfaultfd)"
                            : "") +
           (facts.apart ? ", kept from children" : "");
  return "RDMA of copies" + code(Cause::zero_copy) + " (" + facts.no_zero_copy + ")";
}

std::string within_host(const EndpointFacts& facts) {
  if (!facts.shm) return std::string("the NIC (") + facts.no_shm + ")";
  return facts.cma ? "shared memory, CMA where the kernel permits"
                   : "shared memory, no CMA (FI_ERDMA_CMA=off)";
}

std::string gpu_memory(const EndpointFacts& facts) {
  switch (facts.gpu) {
    case EndpointFacts::Gpu::unasked:
      return "none, FI_HMEM was not asked for";
    case EndpointFacts::Gpu::direct:
      return "GPUDirect, without CUDA";
    case EndpointFacts::Gpu::registered:
      return "GPUDirect where it can be registered";
    case EndpointFacts::Gpu::ipc:
      return "CUDA IPC where the driver permits";
    case EndpointFacts::Gpu::staged:
      return "staged" + code(Cause::gpu_staged) + " (" + facts.no_direct + ")";
  }
  return "unknown";
}

}  // namespace

FactTexts describe(const EndpointFacts& facts) {
  return {between_hosts(facts), within_host(facts), gpu_memory(facts)};
}

std::string summarize(const EndpointFacts& facts) {
  const FactTexts texts = describe(facts);
  return "endpoint " + facts.name + " on " + facts.device +
         (facts.nic ? speed_text(facts.speed) : std::string()) +
         "; other hosts: " + texts.other_hosts + "; this host: " + texts.this_host +
         "; GPU memory: " + texts.gpu_memory;
}

}  // namespace erdma::fabric
