#include "util/log.h"

#include <atomic>
#include <mutex>

#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>

namespace erdma::util {
namespace {

fi_provider unnamed_provider() noexcept {
  fi_provider provider{};
  provider.name = "erdma";
  return provider;
}

const fi_provider g_unnamed = unnamed_provider();
std::atomic<const fi_provider*> g_provider{&g_unnamed};

}  // namespace

/// If another thread is in here, this thread leaves the line to it and does not wait.
bool LineLimit::allow(uint64_t now, unsigned& left_out) noexcept {
  const std::unique_lock guard(x_lock, std::try_to_lock);
  return guard && x_limit.allow(now, left_out);
}

const fi_provider* log_provider() noexcept {
  return g_provider.load(std::memory_order_relaxed);
}

void set_log_provider(const fi_provider* provider) noexcept {
  g_provider.store(provider ? provider : &g_unnamed, std::memory_order_relaxed);
}

}  // namespace erdma::util
