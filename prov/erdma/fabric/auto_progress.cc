#include "fabric/auto_progress.h"

#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>

#include <array>
#include <memory>

#include <rdma/fi_errno.h>

#include "util/process_epoch.h"

namespace erdma::fabric {
namespace {

constexpr int kRoundLimit = 64;

/// Signals are the application's: none is delivered to our thread.
std::thread start_without_signals(auto&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // Also when the thread cannot be made, which throws.
  const std::unique_ptr<sigset_t, void (*)(sigset_t*)> restore(
      &before, [](sigset_t* mask) { pthread_sigmask(SIG_SETMASK, mask, nullptr); });
  return std::thread(std::forward<decltype(body)>(body));
}

}  // namespace

util::Result<std::unique_ptr<AutoProgress>> AutoProgress::start(util::OptionalLock& lock) {
  util::Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  util::EventFd wake;
  if (!epoll || !wake) return -FI_EMFILE;
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.fd(), &event) != 0) return -FI_ENOMEM;
  return std::unique_ptr<AutoProgress>(new AutoProgress(lock, std::move(epoll), std::move(wake)));
}

AutoProgress::AutoProgress(util::OptionalLock& lock, util::Fd epoll, util::EventFd wake)
    : x_lock(lock),
      x_epoll(std::move(epoll)),
      x_wake(std::move(wake)),
      x_epoch(util::process_epoch()),
      x_thread(start_without_signals([this] { run(); })) {}

AutoProgress::~AutoProgress() {
  if (x_epoch != util::process_epoch()) {
    x_thread.detach();
    return;
  }
  {
    util::Guard guard(x_lock);
    x_stop = true;
  }
  wake();
  x_thread.join();
}

/// `change`: EPOLL_CTL_ADD or EPOLL_CTL_DEL.
void AutoProgress::watch(const ProgressSource& source, int change) noexcept {
  std::array<int, 4> fds{};
  epoll_event event{};
  event.events = EPOLLIN;
  const int count = source.wait_fds(fds.data(), int(fds.size()));
  for (int i = 0; i < count; ++i) epoll_ctl(x_epoll.get(), change, fds[size_t(i)], &event);
}

void AutoProgress::add(ProgressSource& source) {
  x_sources.push_back(&source);
  watch(source, EPOLL_CTL_ADD);
  wake();
}

void AutoProgress::remove(ProgressSource& source) noexcept {
  util::Guard guard(x_lock);
  watch(source, EPOLL_CTL_DEL);
  std::erase(x_sources, &source);
}

void AutoProgress::run() noexcept {
  while (round()) {
    epoll_event event;
    epoll_wait(x_epoll.get(), &event, 1, -1);
    x_wake.drain();
  }
}

/// Drives until every source is quiet and armed. False to stop.
bool AutoProgress::round() noexcept {
  for (;;) {
    {
      util::Guard guard(x_lock);
      if (x_stop) return false;
      bool quiet = true;
      for (ProgressSource* source : x_sources) {
        source->disarm();
        for (int i = 0; i < kRoundLimit && source->progress() > 0; ++i) {
        }
        if (!source->arm()) quiet = false;
      }
      if (quiet) return true;
    }
    // Application threads want the lock too; a mutex alone promises them no turn.
    sched_yield();
  }
}

}  // namespace erdma::fabric
