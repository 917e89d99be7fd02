#pragma once

#include "libcheck.h"
#include "transport/shm/core_sharing.h"

namespace erdma::transport::shm {

/// Makes `core` look as if other threads had used it for a long time.
inline void share(CoreSharing& core) {
  core = CoreSharing([]() noexcept {
    static CoreSharing::Usage usage{pthread_self(), 0, 0, 0};
    usage.forced += 100;
    return usage;
  });
  core.judge(1'000'000'000);
  core.judge(2'000'000'000);
  ck_assert(core.shared());
}

}  // namespace erdma::transport::shm
