#include "transport/verbs/handles.h"

#include <cstring>

#include "util/log.h"

namespace erdma::transport::verbs {

void log_leak(const char* what, int error) noexcept {
  ERDMA_WARN(DOMAIN, "%s could not be destroyed, and is leaked: %s\n", what, std::strerror(error));
}

}  // namespace erdma::transport::verbs
