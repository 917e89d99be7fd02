#pragma once

#include <sys/uio.h>

#include <memory>

#include "transport/transport.h"
#include "transport/verbs/device.h"

namespace erdma::transport::verbs {

/// Registers memory of the application that peers may access, with exactly these rights. Null: it
/// can't be registered (logged), or not where a fork would take the pages away.
std::unique_ptr<RegisteredRegion> open_region(const Device& device, const iovec& memory,
                                              bool for_reads, bool for_writes) noexcept;

}  // namespace erdma::transport::verbs
