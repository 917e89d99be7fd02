#pragma once

#include <string>

#include "softerdma/mapping.h"
#include "softerdma/shared.h"

namespace softerdma {

/// Membership of this process in the fabric: its number, its folder, and the record lock that shows
/// others that it is alive. The next process with the number of a dead one removes its files.
class Fabric {
 public:
  Fabric() = default;
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// Returns 0 or a positive errno, which is logged.
  int join();
  /// Removes this process's folder, and the state folder if this was the last member.
  void leave();

  FabricShared& shared() noexcept { return *x_map.as<FabricShared>(); }
  uint32_t slot() const noexcept { return x_slot; }
  uint32_t generation() const noexcept { return x_generation; }
  ProcessEntry& self() noexcept { return shared().processes[x_slot]; }
  const std::string& folder() const noexcept { return x_folder; }
  /// Folder of process `slot`.
  std::string process_folder(uint32_t slot) const { return x_folder + "/p" + std::to_string(slot); }
  std::string own_path(const std::string& name) const {
    return process_folder(x_slot) + "/" + name;
  }
  /// True if a process holds that number.
  bool alive(uint32_t slot);
  /// Finds the entry of a device. If `make`, adds it. Returns null if there are too many.
  DeviceEntry* device(uint32_t ip, bool make, bool up);

 private:
  int open_file();
  int claim_slot();

  std::string x_folder;
  Mapping x_map;
  int x_fd = -1;
  uint32_t x_slot = 0;
  uint32_t x_generation = 0;
};

}  // namespace softerdma
