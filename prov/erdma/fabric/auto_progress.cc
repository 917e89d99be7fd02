#include "fabric/auto_progress.h"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>

#include <rdma/fi_errno.h>

#include "util/error_text.h"
#include "util/lacks.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::fabric {
namespace {

constexpr int kRoundLimit = 64;
/// How often the thread polls if it can't watch a source.
constexpr int kPollMilliseconds = 1;
constexpr char kThreadText[] = "the progress thread of a domain";

}  // namespace

util::Result<std::unique_ptr<AutoProgress>> AutoProgress::start(util::DomainLock& lock) {
  util::Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return util::refused_descriptor(kThreadText, errno);
  util::EventFd wake;
  if (!wake) return util::refused_descriptor(kThreadText, errno);
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.fd(), &event) != 0)
    return util::refused_descriptor(kThreadText, errno);
  std::unique_ptr<AutoProgress> made(new AutoProgress(lock, std::move(epoll), std::move(wake)));
  if (const int rc = made->x_thread.start<&AutoProgress::run>("erdma-progress", *made)) {
    ERDMA_WARN(DOMAIN, "cannot start a thread: %s\n", util::ErrorText(rc).c_str());
    return -rc;
  }
  return made;
}

AutoProgress::AutoProgress(util::DomainLock& lock, util::Fd epoll, util::EventFd wake) noexcept
    : x_lock(lock),
      x_epoll(std::move(epoll)),
      x_wake(std::move(wake)),
      x_epoch(util::process_epoch()) {}

AutoProgress::~AutoProgress() {
  if (x_epoch != util::process_epoch() || !x_thread.running()) return;
  {
    util::Guard guard(x_lock);
    x_stop = true;
  }
  wake();
  x_thread.join();
}

/// `change`: EPOLL_CTL_ADD or EPOLL_CTL_DEL. False: a descriptor of the source was refused.
bool AutoProgress::watch(const ProgressSource& source, int change) noexcept {
  std::array<int, 4> fds{};
  epoll_event event{};
  event.events = EPOLLIN;
  const int count = source.wait_fds(fds.data(), int(fds.size()));
  bool all = true;
  for (int i = 0; i < count; ++i)
    all = epoll_ctl(x_epoll.get(), change, fds[size_t(i)], &event) == 0 && all;
  return all;
}

void AutoProgress::add(ProgressSource& source) noexcept {
  const bool watched = watch(source, EPOLL_CTL_ADD);
  if (!watched)
    ERDMA_WARN(EP_CTRL, "the progress thread can't watch an endpoint: %s; it will poll\n",
               util::ErrorText(errno).c_str());
  x_sources.push_back({&source, watched});
  if (!watched) x_blind = true;
  wake();
}

void AutoProgress::remove(ProgressSource& source) noexcept {
  util::Guard guard(x_lock);
  watch(source, EPOLL_CTL_DEL);
  std::erase_if(x_sources, [&](const Source& each) { return each.source == &source; });
  x_blind = !std::all_of(x_sources.begin(), x_sources.end(), std::mem_fn(&Source::watched));
}

void AutoProgress::run() noexcept {
  while (round()) {
    epoll_event event;
    epoll_wait(x_epoll.get(), &event, 1, x_blind ? kPollMilliseconds : -1);
    x_wake.drain();
  }
}

/// Makes progress until every source is idle and armed. False: the thread must end.
bool AutoProgress::round() noexcept {
  for (;;) {
    {
      util::Guard guard(x_lock);
      if (x_stop) return false;
      bool quiet = true;
      for (const auto& [source, watched] : x_sources) {
        source->disarm();
        progress_until_idle(*source, kRoundLimit);
        if (!source->arm()) quiet = false;
      }
      if (quiet) return true;
    }
    // Gives application threads a chance to take the lock: a mutex is not fair.
    sched_yield();
  }
}

}  // namespace erdma::fabric
