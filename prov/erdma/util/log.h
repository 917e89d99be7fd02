#pragma once

#include <rdma/providers/fi_log.h>

struct fi_provider;

namespace erdma::util {

/// The provider that log lines are attributed to; set once by fi_prov_ini. Never null: until
/// then (and in unit tests) a nameless stand-in.
const fi_provider* log_provider() noexcept;
void set_log_provider(const fi_provider* provider) noexcept;

}  // namespace erdma::util

// Subsystem: CORE, FABRIC, DOMAIN, EP_CTRL, EP_DATA, AV, CQ, EQ, MR, CNTR.
#define ERDMA_WARN(subsystem, ...) \
  FI_WARN(::erdma::util::log_provider(), FI_LOG_##subsystem, __VA_ARGS__)
#define ERDMA_INFO(subsystem, ...) \
  FI_INFO(::erdma::util::log_provider(), FI_LOG_##subsystem, __VA_ARGS__)
#define ERDMA_DEBUG(subsystem, ...) \
  FI_LOG(::erdma::util::log_provider(), FI_LOG_DEBUG, FI_LOG_##subsystem, __VA_ARGS__)
