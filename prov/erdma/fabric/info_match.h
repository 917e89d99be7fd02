#pragma once

#include <cstdint>

#include <rdma/fabric.h>

namespace erdma::fabric {

/// Does `offer` satisfy `hints` of an application written for API `version`? 0 or -FI_ENODATA,
/// after one log line that names the first attribute asked in vain.
int check_hints(const fi_info& offer, uint32_t version, const fi_info& hints);

/// Turns the offer into the answer: what the hints ask replaces what could have been had.
/// `hints`, which may be null, passed check_hints().
void apply_hints(fi_info& info, uint32_t version, const fi_info* hints);

}  // namespace erdma::fabric
