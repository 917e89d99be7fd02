#pragma once

#include <cstddef>
#include <span>

#include "util/socket_address.h"

/// Recognizes hosts whose NICs work but cannot reach each other: one is in eRDMA's standard mode
/// and the other in compat mode, or a port mapper diverts connections.
namespace erdma::transport::verbs {

/// True if iwpmd runs, judged by its UDP port. `table`: a file like /proc/net/udp.
bool port_mapper_runs(const char* table) noexcept;

/// True if a NIC in standard mode sent these bytes, with which its driver begins each connection.
bool begins_as_iwarp(std::span<const std::byte> bytes) noexcept;

/// Reports a peer that closed the connection before its hello.
void tell_of_iwarp(const util::SocketAddress& from) noexcept;

/// Reports possible reasons where no peer was ever reached; `status` is the last outcome. Names
/// what is known, and what to check. `standard`: the mode of this host's NIC.
void tell_why_unreached(const util::SocketAddress& peer, int status, bool standard,
                        bool mapper_runs) noexcept;

}  // namespace erdma::transport::verbs
