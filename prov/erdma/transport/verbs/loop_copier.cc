#include "transport/verbs/loop_copier.h"

#include <sched.h>
#include <sodium.h>

#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/verbs/job_key.h"
#include "util/clock.h"
#include "util/log.h"

namespace erdma::transport::verbs {

/// The other end is the copier itself, so nothing else arrives.
class LoopCopier::Waiter final : public Sink {
 public:
  void on_packet(Link& link, const std::byte*, const std::byte*, size_t) noexcept override {
    link.fail(-FI_ECONNRESET);
  }
  void on_done(uint64_t, int status) noexcept override {
    done = true;
    if (!rc) rc = status;
  }
  void on_link_down(Link&, int status) noexcept override {
    if (!posted) done = true;
    if (!rc) rc = status;
  }

  bool posted = false;
  bool done = false;
  int rc = 0;
};

int LoopCopier::read(void* to, const RemoteRange& from) noexcept {
  return move(from, to, true);
}

int LoopCopier::write(const RemoteRange& to, const void* from) noexcept {
  return move(to, const_cast<void*>(from), false);
}

/// Nobody polls the copier between copies, so it would keep all that connects to it meanwhile.
int LoopCopier::open() noexcept try {
  if (sodium_init() < 0) return -FI_ENOSYS;
  Options options = x_options;
  options.job_key = random_key_text();
  auto loop = VerbsTransport::open(options, x_device, x_cache, x_device.address());
  if (!loop) return loop.error();
  x_loop = std::move(*loop);
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

/// -FI_EAGAIN: there is no connection yet, or no room.
int LoopCopier::begin(Waiter& waiter, const RemoteRange& remote, const iovec& local,
                      bool reads) noexcept {
  util::Result<Link*> link = x_loop->link_to(x_loop->name());
  if (!link) return link.error();
  const int rc =
      reads ? (*link)->get(remote, &local, 1, 0) : (*link)->put(remote, &local, 1, 0, true);
  waiter.posted = rc == 0;
  return rc;
}

/// Leaves nothing in progress: if the copy fails, the queue pairs are destroyed.
int LoopCopier::try_once(const RemoteRange& remote, const iovec& local, bool reads,
                         uint64_t deadline) noexcept {
  const util::SystemClock clock;
  Waiter waiter;
  if (!x_loop) waiter.rc = open();
  while (!waiter.rc && !waiter.done) {
    const int rc = waiter.posted ? 0 : begin(waiter, remote, local, reads);
    if (rc && rc != -FI_EAGAIN) waiter.rc = rc;
    if (!x_loop->poll(waiter)) sched_yield();
    if (!waiter.done && clock.now() > deadline) waiter.rc = -FI_ETIMEDOUT;
  }
  if (waiter.rc) x_loop.reset();
  return waiter.rc;
}

/// A connection that is there may have ended since the last copy. Then a new one makes the copy,
/// which may be made twice, as nobody else uses the memory.
int LoopCopier::move(const RemoteRange& remote, void* local, bool reads) noexcept {
  const std::lock_guard guard(x_mutex);
  const uint64_t deadline =
      util::SystemClock().now() + x_options.connect_timeout_ns + x_options.peer_timeout_ns;
  const iovec here{local, remote.length};
  const bool idle = x_loop != nullptr;
  int rc = try_once(remote, here, reads, deadline);
  if (rc && idle) rc = try_once(remote, here, reads, deadline);
  if (!rc) return 0;
  ERDMA_WARN(EP_DATA, "%s could not copy %lu bytes between host and GPU memory by itself: %s\n",
             x_device.name().c_str(), remote.length, fi_strerror(-rc));
  return -FI_EIO;
}

}  // namespace erdma::transport::verbs
