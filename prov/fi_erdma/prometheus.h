#pragma once

#include <string>

#include "fi_erdma/asked.h"

namespace fi_erdma {

/// Text in the format of Prometheus, for the collector of text files of node_exporter: counters of
/// all processes, and what waits in those that answered.
std::string prometheus_text(const AskedLook& asked);

}  // namespace fi_erdma
