#pragma once

#include <string>

#include "fi_erdma/asked.h"

namespace fi_erdma {

/// Text in the format of Prometheus, for the textfile collector of node_exporter: the counters of
/// all processes, and the waiting operations of the endpoints that answered.
std::string prometheus_text(const AskedLook& asked);

}  // namespace fi_erdma
