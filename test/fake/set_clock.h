#pragma once

#include <cstdint>

#include "util/clock.h"

namespace erdma::fake {

/// Time passes only when a test says so.
class SetClock final : public util::Clock {
 public:
  uint64_t now() const noexcept override { return time; }
  uint64_t time = 1;  ///< ns
};

}  // namespace erdma::fake
