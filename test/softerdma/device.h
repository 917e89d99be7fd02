#pragma once

#include <memory>
#include <vector>

#include "softerdma/fabric.h"
#include "softerdma/objects.h"

namespace softerdma {

/// Returns the devices of this process after registering them in the fabric. Each has a folder in a
/// tree that looks like sysfs.
std::vector<std::unique_ptr<Device>> make_devices(Fabric& fabric);
/// Writes ports/1/state and phys_state again.
void write_port_state(const Device& device);

inline constexpr int kGids = 16;
/// Reads entry `index` of the GID table. Returns false if it is empty.
bool query_gid_entry(const Device& device, int index, ibv_gid_entry& entry);
/// Returns the address of an IPv4-mapped GID, or 0 if it is another GID.
uint32_t gid_address(const ibv_gid& gid);

}  // namespace softerdma
