#pragma once

#include <string>

#include "fi_erdma/json.h"
#include "fi_erdma/libfabric.h"

namespace fi_erdma {

/// Exchanges bytes between two endpoints of this process on the first domain that erdma offers, and
/// compares them: messages of 8 bytes to 1 MiB, and an RMA read. Returns {"step", "error"?,
/// "speed", "copy_speed", "interface"?, "mtu"?, "device", "this_host", "other_hosts", "gpu_memory",
/// "counters"}. `step` is the last one that was begun; the counters are those of the page.
Json exchange_bytes(const Libfabric& libfabric);

/// Calls fi_getinfo with the hints of a client, one of client_names(). Returns {"error"?,
/// "device"}.
Json ask_as(const Libfabric& libfabric, const std::string& client);
std::vector<std::string> client_names();

}  // namespace fi_erdma
