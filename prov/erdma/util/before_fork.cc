#include "util/before_fork.h"

#include <pthread.h>

#include <mutex>

namespace erdma::util {
namespace {

/// The mutex is locked from before a fork until after it, in both processes, so that the child
/// inherits a consistent list.
struct Listeners {
  std::mutex mutex;
  IntrusiveList<BeforeFork> list;
};

/// Never destroyed, so it outlives every object and thread.
Listeners& listeners() noexcept {
  static auto& made = *new Listeners;
  return made;
}

void prepare() noexcept {
  Listeners& all = listeners();
  all.mutex.lock();
  for (BeforeFork* one = all.list.front(); one; one = all.list.next(*one)) one->before_fork();
}
void resume() noexcept {
  listeners().mutex.unlock();
}

}  // namespace

void BeforeFork::listen() noexcept {
  [[maybe_unused]] static const int registered = pthread_atfork(prepare, resume, resume);
  std::lock_guard guard(listeners().mutex);
  listeners().list.push_back(*this);
}

void BeforeFork::forget() noexcept {
  std::lock_guard guard(listeners().mutex);
  if (linked()) unlink();
}

}  // namespace erdma::util
