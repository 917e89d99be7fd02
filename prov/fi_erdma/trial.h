#pragma once

#include <string>
#include <vector>

#include "fi_erdma/clients.h"
#include "fi_erdma/json.h"

namespace fi_erdma {

/// Exchanges bytes between two endpoints of this process on the first domain that erdma offers, and
/// compares them: messages of 8 bytes to 1 MiB, RMA reads, and messages after other memory was
/// mapped at the address of memory that was sent, and after a fork. Returns {"step", "error"?,
/// "speed", "copy_speed", "interface"?, "mtu"?, "device", "this_host", "other_hosts", "gpu_memory",
/// "counters", "renewed": {"error"?}, "fork": {"error"?}}. `step` is the last one that was begun;
/// the counters are those of the page before the last two steps. `longest_seconds`: of processor
/// time, for each message, since the trial polls: time in which the process was stopped does not
/// count.
Json exchange_bytes(double longest_seconds);

/// Calls fi_getinfo as a client does. Returns {"error", "too_old"}, or {"device", "gpu", "pci"}:
/// whether messages may be in GPU memory, and the device has a PCI address. `too_old`: this
/// libfabric does not know the version that the client asks for.
Json ask_as(const Client& client);
/// The names of kClients, each once.
std::vector<std::string> client_names();

/// Opens an endpoint for GPU memory and forbids it to call CUDA, as aws-ofi-nccl does before it
/// uses GPUDirect. Returns {"error"?}.
Json open_without_cuda();

}  // namespace fi_erdma
