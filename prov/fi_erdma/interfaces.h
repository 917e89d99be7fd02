#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fi_erdma {

/// A network interface of this process's network namespace.
struct Interface {
  std::string name;
  unsigned mtu;  ///< bytes: packets are no longer
};

/// The one that has the IP address of an endpoint, whose name these bytes are; nothing if there is
/// none.
std::optional<Interface> interface_of(std::string_view name);

}  // namespace fi_erdma
