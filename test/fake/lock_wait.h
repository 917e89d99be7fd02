#pragma once

#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

namespace erdma::fake {

/// True once a thread of this process waits, for a lock or a while.
inline bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  return stat.compare(stat.rfind(')') + 1, 3, " S ") == 0;
}

/// True if a thread that locks `other` waits while another one has locked `held`.
template <typename Held, typename Other>
bool waits(Held& held, Other& other) {
  std::atomic<pid_t> begun = 0;
  std::atomic<bool> entered = false;
  std::unique_lock holder(held);
  std::thread thread([&] {
    begun = gettid();
    const std::lock_guard guard(other);
    entered = true;
  });
  while (!begun || (!entered && !sleeps(begun))) sched_yield();
  const bool waited = !entered;
  holder.unlock();
  thread.join();
  return waited && entered;
}

}  // namespace erdma::fake
