#pragma once

#include <cstddef>
#include <span>

#include "util/socket_address.h"

/// Hosts whose NICs work, and that never meet: one is in eRDMA's standard mode and the other in
/// compat mode, or a port mapper sends connections elsewhere.
namespace erdma::transport::verbs {

/// Whether iwpmd runs: by the port of UDP that it has. `table`: of the kernel, or of a test.
bool port_mapper_runs(const char* table = "/proc/net/udp") noexcept;

/// Whether a NIC in standard mode said this, whose driver begins each connection so.
bool begins_as_iwarp(std::span<const std::byte> bytes) noexcept;

/// Of a peer that hung up before it said hello.
void tell_of_iwarp(const util::SocketAddress& from) noexcept;

/// What may be unlike where no peer was ever reached, of which `status` is the last outcome. It
/// names what is known, and says what to look at. `standard`: the mode of this host's NIC.
void tell_why_unreached(const util::SocketAddress& peer, int status, bool standard,
                        bool mapper_runs) noexcept;

}  // namespace erdma::transport::verbs
