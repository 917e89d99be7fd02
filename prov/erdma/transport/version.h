#pragma once

#include <string>

/// Two numbers say which format an endpoint uses. The transport's own number covers its handshake
/// and its packets. The protocol's number covers the headers in the packets; it is given as
/// Options::protocol_version, since a transport does not know those headers. Each handshake
/// compares both numbers.
namespace erdma::transport {

/// Returns the reason, for the log, why a connection is refused: `theirs` is not `ours`.
inline std::string version_fault(const char* format, unsigned theirs, unsigned ours) {
  return std::string("another version of the ") + format + " (" + std::to_string(theirs) +
         ", here " + std::to_string(ours) +
         "): install the same version of the provider on all hosts and in all containers";
}

}  // namespace erdma::transport
