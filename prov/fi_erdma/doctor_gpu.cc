#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "fi_erdma/doctor.h"
#include "fi_erdma/libfabric.h"
#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/processes.h"
#include "fi_erdma/trial.h"
#include "fi_erdma/two_sides.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

using pair::Channel;
using pair::Exchange;
using pair::Side;

/// The functions of the CUDA driver. Without them there is nothing to try.
Json try_cuda() {
  void* const cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cuda) return {{"gpus", 0}};
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(cuda, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(cuda, "cuDeviceGetCount"));
  int gpus = 0;
  constexpr int kNoDevice = 100;
  const int begun = init && count ? init(0) : -1;
  if (begun == kNoDevice) return {{"gpus", 0}};
  const int failed = begun ? begun : count(&gpus);
  return failed ? Json{{"error", "cuInit"}} : Json{{"gpus", gpus}};
}

/// The GPU counters of the only endpoint of this process.
void add_counters(Json& json) {
  const Process self = this_process();
  for (const Block& endpoint : self.blocks("endpoint"))
    for (const char* const name : {"gpu_direct_bytes", "gpu_staged_bytes", "gpu_ipc_bytes"})
      if (const auto number = endpoint.number(name)) json[name] = *number;
}

/// Exchanges messages between two processes, from and to memory of the first GPU.
Json exchange_of_gpu() {
  pair::Options options;
  options.provider = "erdma";
  options.memory = "cuda";
  options.limit_s = 20;
  options.sizes = {8, 4096, kLongBytes};
  return run_two_sides("messages of a GPU", options, [&](Side side, Channel& channel) {
    Exchange exchange(options, side, channel, FI_TAGGED);
    for (const size_t size : options.sizes)
      exchange.compared(Exchange::Kind::message, size, kTrialRounds);
    Json json = {{"speed", exchange.speed(Exchange::Kind::message, kLongBytes, kTimedRounds)}};
    exchange.barrier();
    add_counters(json);
    return json;
  });
}

void check_gpu_bytes(Report& report, const std::string& where, Variables variables) {
  variables.emplace_back("FI_PROVIDER", "erdma");
  const Outcome outcome = try_apart(telling(std::move(variables)), exchange_of_gpu, 120);
  const std::string trouble = trouble_of(outcome);
  if (!trouble.empty())
    return report.broken("E603", where + ": GPU memory can't be sent: " + trouble, outcome.said);
  const std::string moved = where + ": messages of GPU memory arrive" + speed_text(outcome);
  const auto counted = [&](const char* name) { return number_of(outcome.result, name, 0); };
  if (!outcome.result.contains("gpu_direct_bytes"))
    report.ok(moved + ", which way is not known");
  else if (counted("gpu_direct_bytes") >= kLongBytes)
    report.ok(moved + ", by GPUDirect");
  else if (counted("gpu_ipc_bytes") >= kLongBytes)
    report.ok(moved + ", by CUDA IPC");
  else
    report.slower("W602", moved + ", copied through host memory", outcome.said);
}

/// Tries what aws-ofi-nccl demands of the NIC before it tells NCCL that there is GPUDirect.
void check_nccl(Report& report, const std::string& device) {
  const Outcome outcome = try_apart(
      telling({{"FI_PROVIDER", "erdma"}, {"FI_ERDMA_DEVICE", device}}), open_without_cuda);
  const std::string trouble = trouble_of(outcome);
  if (trouble.empty())
    return report.ok(device + ": GPU memory also works without calls of CUDA, as NCCL needs it");
  report.slower(
      "W604", device + ": NCCL does without GPUDirect: FI_OPT_CUDA_API_PERMITTED=false: " + trouble,
      outcome.said);
}

}  // namespace

int count_gpus() {
  const Outcome outcome = try_apart({}, try_cuda);
  return trouble_of(outcome).empty() ? outcome.result.value("gpus", 0) : 0;
}

void check_gpu(Report& report, const Offer& offer) {
  report.begin("gpu");
  const Outcome outcome = try_apart({}, try_cuda);
  if (!trouble_of(outcome).empty())
    return report.broken("E601", "CUDA cannot be initialized, although its library is installed",
                         {"check the driver: nvidia-smi"});
  const int gpus = outcome.result.value("gpus", 0);
  report.ok(fmt::format("{} GPUs", gpus));
  if (!gpus || !offer.any) return;
  if (!is_switched_off("FI_ERDMA_SHM"))
    check_gpu_bytes(report, "inside this host", {{"FI_ERDMA_DEVICE", "shm"}});
  for (const std::string& device : offer.devices) {
    check_gpu_bytes(report, device, {{"FI_ERDMA_DEVICE", device}, {"FI_ERDMA_SHM", "off"}});
    check_nccl(report, device);
  }
}

}  // namespace fi_erdma
