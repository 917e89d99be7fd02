#pragma once

#include <memory>
#include <vector>

#include "softerdma/fabric.h"
#include "softerdma/objects.h"

namespace softerdma {

/// The devices that this process sees, registered in the fabric, each with its folder in a tree
/// that looks like sysfs.
std::vector<std::unique_ptr<Device>> make_devices(Fabric& fabric);
/// Writes ports/1/state and phys_state again.
void write_port_state(const Device& device);

inline constexpr int kGids = 16;
/// Entry `index` of the GID table; false if it is empty.
bool query_gid_entry(const Device& device, int index, ibv_gid_entry& entry);
/// The address that an IPv4-mapped GID holds; 0 if it is none.
uint32_t gid_address(const ibv_gid& gid);

}  // namespace softerdma
