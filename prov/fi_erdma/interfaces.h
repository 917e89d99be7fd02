#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fi_erdma {

/// A network interface of this process's network namespace.
struct Interface {
  std::string name;
  unsigned mtu;  ///< the largest packet, in bytes
};

/// The interface that has the IP address of an endpoint. `name` is the endpoint's address as
/// fi_getname returns it. Empty if there is no such interface.
std::optional<Interface> interface_of(std::string_view name);

}  // namespace fi_erdma
