#pragma once

#include <string>

#include "fi_erdma/json.h"
#include "fi_erdma/libfabric.h"

namespace fi_erdma {

/// Two endpoints of this process on the first domain that erdma offers here exchange bytes, which
/// are compared: messages from 8 bytes to 1 MiB, and an RMA read. What the page counted comes with
/// the outcome: {"step", "error"?, "speed", "copy_speed", "interface"?, "mtu"?, "device",
/// "this_host", "other_hosts", "gpu_memory", "counters"}. `step` is the last one that was begun.
Json exchange_bytes(const Libfabric& libfabric);

/// {"error"?, "device"}: whether a client's hints are met. `client` is one of client_names().
Json ask_as(const Libfabric& libfabric, const std::string& client);
std::vector<std::string> client_names();

}  // namespace fi_erdma
