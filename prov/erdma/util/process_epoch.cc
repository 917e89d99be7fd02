#include "util/process_epoch.h"

#include <pthread.h>

#include "util/private_fds.h"

namespace erdma::util {

std::atomic<uint32_t> g_process_epoch{0};

void register_fork_handler() noexcept {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] {
    g_process_epoch.fetch_add(1, std::memory_order_relaxed);
    plug_private_fds();
  });
}

}  // namespace erdma::util
