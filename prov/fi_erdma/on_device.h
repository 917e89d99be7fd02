#pragma once

#include <string_view>

#include "fi_erdma/rates.h"

namespace fi_erdma {

/// Leaves of a look only the endpoints on this device, their peers, and the processes that have
/// any, besides processes with a fault. The counters of closed endpoints become unknown, as their
/// device is. An empty name leaves everything.
void leave_device(Look& look, std::string_view device);

}  // namespace fi_erdma
