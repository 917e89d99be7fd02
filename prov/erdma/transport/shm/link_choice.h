#pragma once

#include <cstddef>

namespace erdma::transport::shm {

class ShmLink;
struct CmaPeer;
struct LinkContext;

/// Link::prefers_packets().
bool prefers_packets(ShmLink& link, size_t length, bool expected) noexcept;
/// True if messages may go either way, and how long each takes may be measured: the receiver can
/// read them, and what a message costs is not how long it waits for a turn on the core.
bool may_measure(const LinkContext& context, const CmaPeer& peer) noexcept;

}  // namespace erdma::transport::shm
