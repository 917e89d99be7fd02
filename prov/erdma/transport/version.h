#pragma once

#include <string>

/// Two numbers say which format an endpoint speaks. The transport's own covers its handshake and
/// its packets. The protocol's covers the headers in them; it comes as Options::protocol_version,
/// since a transport does not know those headers. Each handshake compares both numbers.
namespace erdma::transport {

/// For the log line of a connection that is refused because `theirs` is not `ours`.
inline std::string version_fault(const char* format, unsigned theirs, unsigned ours) {
  return std::string("another version of the ") + format + " (" + std::to_string(theirs) +
         ", here " + std::to_string(ours) +
         "): install the same version of the provider on all hosts and in all containers";
}

}  // namespace erdma::transport
