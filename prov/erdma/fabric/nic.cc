#include "fabric/nic.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include "fabric/fid_ops.h"

namespace erdma::fabric {
namespace {

/// Made by make_nic or FI_DUP, and destroyed by fi_close. The pointers of fid_nic point into this
/// object.
class Nic final : public fid_nic {
 public:
  static Nic& from(fid_t nic) noexcept {
    return static_cast<Nic&>(*reinterpret_cast<fid_nic*>(nic));
  }

  explicit Nic(NicDescription description);
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  const NicDescription& description() const noexcept { return x_description; }
  int control(int command, void* argument) {
    if (command != FI_DUP) return -FI_ENOSYS;
    *static_cast<fid_nic**>(argument) = make_nic(x_description);
    return 0;
  }
  int close() noexcept {
    delete this;
    return 0;
  }

 private:
  NicDescription x_description;
  fi_device_attr x_device{};
  fi_link_attr x_link{};
};

struct BusText {
  explicit BusText(const fi_bus_attr& bus) noexcept {
    if (bus.bus_type != FI_BUS_PCI) return;
    const fi_pci_attr& pci = bus.attr.pci;
    std::snprintf(text, sizeof(text), "PCI %04x:%02x:%02x.%x", pci.domain_id, pci.bus_id,
                  pci.device_id, pci.function_id);
  }
  char text[32] = "unknown";
};

/// Appends to the text in `buffer`, indented as fi_tostr(3) does. It does not allocate.
int to_string(const struct fid* nic, char* buffer, size_t room) noexcept {
  const NicDescription& d =
      static_cast<const Nic&>(*reinterpret_cast<const fid_nic*>(nic)).description();
  const size_t used = strnlen(buffer, room);
  std::snprintf(buffer + used, room - used,
                "    nic:\n        device: %s (vendor %s, device %s)\n        driver: %s\n"
                "        firmware: %s\n        bus: %s\n        address: %s\n        state: %s\n"
                "        mtu: %zu\n        speed: %zu\n        network_type: %s\n",
                d.name.c_str(), d.vendor_id.c_str(), d.device_id.c_str(), d.driver.c_str(),
                d.firmware.c_str(), BusText(d.bus).text, d.address.c_str(), d.up ? "up" : "down",
                d.mtu, d.speed, d.network_type.c_str());
  return 0;
}

fi_ops g_nic_ops = [] {
  fi_ops ops = fid_ops<Nic>();
  ops.tostr = to_string;
  return ops;
}();

Nic::Nic(NicDescription description) : fid_nic{}, x_description(std::move(description)) {
  fid.fclass = FI_CLASS_NIC;
  fid.ops = &g_nic_ops;
  x_device = {.name = x_description.name.data(),
              .device_id = x_description.device_id.data(),
              .device_version = x_description.device_version.data(),
              .vendor_id = x_description.vendor_id.data(),
              .driver = x_description.driver.data(),
              .firmware = x_description.firmware.data()};
  x_link = {.address = x_description.address.data(),
            .mtu = x_description.mtu,
            .speed = x_description.speed,
            .state = x_description.up ? FI_LINK_UP : FI_LINK_DOWN,
            .network_type = x_description.network_type.data()};
  device_attr = &x_device;
  bus_attr = &x_description.bus;
  link_attr = &x_link;
}

}  // namespace

fid_nic* make_nic(NicDescription description) {
  return new Nic(std::move(description));
}

}  // namespace erdma::fabric
