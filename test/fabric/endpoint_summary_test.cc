#include "fabric/endpoint_summary.h"

#include <iterator>
#include <string>

#include "libcheck.h"

using erdma::fabric::EndpointFacts;
using Gpu = EndpointFacts::Gpu;

namespace {

struct Case {
  EndpointFacts facts;
  const char* line;
};

EndpointFacts nic(const char* no_zero_copy, const char* no_shm, Gpu gpu = Gpu::unasked) {
  EndpointFacts facts;
  facts.name = "10.0.0.1:5000";
  facts.device = "erdma_0";
  facts.speed = 100'000'000'000;
  facts.nic = true;
  facts.no_zero_copy = no_zero_copy;
  facts.shm = !no_shm;
  if (no_shm) facts.no_shm = no_shm;
  facts.gpu = gpu;
  return facts;
}

EndpointFacts single_host(bool cma, Gpu gpu) {
  EndpointFacts facts;
  facts.name = "127.0.0.1:7";
  facts.device = "shm";
  facts.speed = 1;
  facts.shm = true;
  facts.cma = cma;
  facts.gpu = gpu;
  facts.no_direct = "FI_ERDMA_CUDA_IPC=off";
  return facts;
}

EndpointFacts of_unknown_speed() {
  EndpointFacts facts = nic(nullptr, nullptr, Gpu::direct);
  facts.speed = 0;
  return facts;
}

EndpointFacts registered_each_time() {
  EndpointFacts facts = nic(nullptr, nullptr);
  facts.each_time = true;
  return facts;
}

EndpointFacts kept_from_children() {
  EndpointFacts facts = nic(nullptr, nullptr);
  facts.apart = true;
  return facts;
}

const Case kCases[] = {
    {nic(nullptr, nullptr),
     "endpoint 10.0.0.1:5000 on erdma_0, 100 Gbit/s; other hosts: RDMA, zero copy; this host: "
     "shared memory, CMA where the kernel permits; GPU memory: none, FI_HMEM was not asked for"},
    {nic("FI_ERDMA_MR_CACHE=off", "FI_ERDMA_SHM=off", Gpu::registered),
     "endpoint 10.0.0.1:5000 on erdma_0, 100 Gbit/s; other hosts: RDMA of copies [W203] "
     "(FI_ERDMA_MR_CACHE=off); this host: the NIC (FI_ERDMA_SHM=off); GPU memory: GPUDirect where "
     "it can be registered"},
    {of_unknown_speed(),
     "endpoint 10.0.0.1:5000 on erdma_0; other hosts: RDMA, zero copy; this host: shared memory, "
     "CMA where the kernel permits; GPU memory: GPUDirect, without CUDA"},
    {registered_each_time(),
     "endpoint 10.0.0.1:5000 on erdma_0, 100 Gbit/s; other hosts: RDMA, zero copy from "
     "256 KiB on [W203] (no userfaultfd); this host: shared memory, CMA where the kernel "
     "permits; GPU memory: none, FI_HMEM was not asked for"},
    {kept_from_children(),
     "endpoint 10.0.0.1:5000 on erdma_0, 100 Gbit/s; other hosts: RDMA, zero copy, kept from "
     "children; this host: shared memory, CMA where the kernel permits; GPU "
     "memory: none, FI_HMEM was not asked for"},
    {single_host(true, Gpu::ipc),
     "endpoint 127.0.0.1:7 on shm; other hosts: none, there is no NIC; this host: shared memory, "
     "CMA where the kernel permits; GPU memory: CUDA IPC where the driver permits"},
    {single_host(false, Gpu::staged),
     "endpoint 127.0.0.1:7 on shm; other hosts: none, there is no NIC; this host: shared memory, "
     "no CMA (FI_ERDMA_CMA=off); GPU memory: staged [W602] (FI_ERDMA_CUDA_IPC=off)"},
};

TEST(the_line_says_how_bytes_travel_and_why, std::size(kCases)) {
  const std::string line = erdma::fabric::summarize(kCases[_i].facts);
  ck_assert_msg(line == kCases[_i].line, "%s", line.c_str());
}

}  // namespace
