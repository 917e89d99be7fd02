#include "fabric/eq.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include <rdma/fi_errno.h>

#include "fabric/fabric.h"
#include "util/lacks.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

constexpr size_t kDefaultSize = 256;
constexpr size_t kMaxEventBytes = 65536;

// The provider error of each event is its error, because applications print the text of it.
const char* eq_strerror(fid_eq*, int provider_error, const void*, char* buffer,
                        size_t length) noexcept {
  const char* text = fi_strerror(provider_error);
  if (!buffer || !length) return text;
  std::snprintf(buffer, length, "%s", text);
  return buffer;
}

fi_ops_eq g_eq_ops = {
    .size = sizeof(fi_ops_eq),
    .read = entry<&EventQueue::read>,
    .readerr = entry<&EventQueue::read_error>,
    .write = entry<&EventQueue::write>,
    .sread = blocking_entry<&EventQueue::read_blocking>,
    .strerror = eq_strerror,
};

int check_attr(const fi_eq_attr& attr) noexcept {
  if (attr.flags & ~(FI_WRITE | FI_AFFINITY)) return -FI_EINVAL;
  switch (attr.wait_obj) {
    case FI_WAIT_NONE:
    case FI_WAIT_UNSPEC:
    case FI_WAIT_FD:
    case FI_WAIT_YIELD:
    case FI_WAIT_SET:
      return 0;
    case FI_WAIT_MUTEX_COND:
    case FI_WAIT_POLLFD:
      ERDMA_WARN(EQ, "this wait object is not supported: use FI_WAIT_FD\n");
      return -FI_ENOSYS;
    default:
      return -FI_EINVAL;
  }
}

}  // namespace

EventQueue::EventQueue(const fi_eq_attr& attr, util::Fd wait, uint32_t api_version,
                       Children* siblings, void* context)
    : FidObject(FI_CLASS_EQ, context, siblings),
      x_api_version(api_version),
      x_writable(attr.flags & FI_WRITE),
      x_size(attr.size ? attr.size : kDefaultSize),
      x_wait_object(attr.wait_obj),
      x_wait(std::move(wait)) {
  ops = &g_eq_ops;
}

void EventQueue::post(uint32_t event, const fi_eq_entry& entry) noexcept {
  post_bytes(event, false, &entry, sizeof(entry));
}

void EventQueue::post_error(const fi_eq_err_entry& error) noexcept {
  fi_eq_err_entry stored = error;
  stored.prov_errno = error.err;
  stored.err_data = nullptr;
  stored.err_data_size = 0;
  post_bytes(0, true, &stored, sizeof(stored));
}

int EventQueue::try_wait() noexcept {
  const std::lock_guard guard(x_mutex);
  if (readable()) return -FI_EAGAIN;
  return x_mutex.owned() ? 0 : -FI_EOPBADSTATE;
}

ssize_t EventQueue::read(uint32_t* event, void* buffer, size_t length, uint64_t flags) noexcept {
  if (!buffer || (flags & ~FI_PEEK)) return -FI_EINVAL;
  const std::lock_guard guard(x_mutex);
  return read_locked(event, buffer, length, flags);
}

ssize_t EventQueue::read_locked(uint32_t* event, void* buffer, size_t length,
                                uint64_t flags) noexcept {
  if (x_events.empty()) return x_overrun ? -FI_EAVAIL : -FI_EAGAIN;
  const Event& first = x_events.front();
  if (first.failed) return -FI_EAVAIL;
  if (length < first.bytes.size()) return -FI_ETOOSMALL;
  const size_t bytes = first.bytes.size();
  std::memcpy(buffer, first.bytes.data(), bytes);
  if (event) *event = first.type;
  if (!(flags & FI_PEEK)) pop();
  return static_cast<ssize_t>(bytes);
}

ssize_t EventQueue::read_error(fi_eq_err_entry* error, uint64_t flags) noexcept {
  if (!error || (flags & ~FI_PEEK)) return -FI_EINVAL;
  fi_eq_err_entry found{};
  {
    const std::lock_guard guard(x_mutex);
    if (!readable() || (!x_events.empty() && !x_events.front().failed)) return -FI_EAGAIN;
    if (x_events.empty()) {
      found.fid = &fid;
      found.context = fid.context;
      found.err = found.prov_errno = FI_EOVERRUN;
    } else {
      std::memcpy(&found, x_events.front().bytes.data(), sizeof(found));
      if (!(flags & FI_PEEK)) pop();
    }
  }
  // No error has data. Since 1.5 a nonzero err_data_size on input says that err_data is the
  // caller's buffer; it stays in place, with length 0. Before, both are output only.
  if (FI_VERSION_GE(x_api_version, FI_VERSION(1, 5)) && error->err_data_size)
    found.err_data = error->err_data;
  *error = found;
  return sizeof(found);
}

ssize_t EventQueue::write(uint32_t event, const void* buffer, size_t length,
                          uint64_t flags) noexcept try {
  if (!buffer || !length || length > kMaxEventBytes || flags || !x_writable) return -FI_EINVAL;
  const auto* bytes = static_cast<const std::byte*>(buffer);
  Event written{event, false, {bytes, bytes + length}};
  const std::lock_guard guard(x_mutex);
  if (x_overrun) return -FI_EOVERRUN;
  if (x_events.size() >= x_size) return -FI_EAGAIN;
  push(std::move(written));
  return static_cast<ssize_t>(length);
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

/// A signal ends the wait (fi_eq_sread(3)). A thread's last step here is to release the mutex,
/// which close() takes before it reads x_blocked, so no thread uses the object after its
/// destruction.
ssize_t EventQueue::read_blocking(uint32_t* event, void* buffer, size_t length, int timeout_ms,
                                  uint64_t flags) noexcept {
  if (x_wait_object == FI_WAIT_NONE) return -FI_ENOSYS;
  if (!buffer || (flags & ~FI_PEEK)) return -FI_EINVAL;
  const Deadline deadline(timeout_ms);
  std::unique_lock lock(x_mutex);
  for (;;) {
    const ssize_t rc = read_locked(event, buffer, length, flags);
    if (rc != -FI_EAGAIN) return rc;
    if (!x_mutex.owned()) return -FI_EOPBADSTATE;
    pollfd wait{x_wait.get(), POLLIN, 0};
    ++x_blocked;
    lock.unlock();
    const int ready = ::poll(&wait, 1, deadline.left());
    const int error = errno;
    lock.lock();
    --x_blocked;
    if (ready < 0) return error == EINTR ? -FI_EAGAIN : -error;
    if (ready == 0) return -FI_EAGAIN;
  }
}

bool EventQueue::sleeping() noexcept {
  const std::lock_guard guard(x_mutex);
  return x_blocked != 0 && x_mutex.owned();
}

int EventQueue::control(int command, void* argument) noexcept {
  if (command != FI_GETWAIT && command != FI_GETWAITOBJ) return -FI_ENOSYS;
  if (!argument) return -FI_EINVAL;
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) =
        x_wait_object == FI_WAIT_UNSPEC ? FI_WAIT_FD : x_wait_object;
    return 0;
  }
  if (!x_wait) return -FI_EINVAL;
  *static_cast<int*>(argument) = x_wait.get();
  return 0;
}

int EventQueue::close() noexcept {
  if (x_bound.load(std::memory_order_relaxed) != 0 || sleeping()) return -FI_EBUSY;
  delete this;
  return 0;
}

void EventQueue::post_bytes(uint32_t event, bool failed, const void* bytes,
                            size_t length) noexcept {
  const std::lock_guard guard(x_mutex);
  if (x_overrun) return;
  try {
    const auto* first = static_cast<const std::byte*>(bytes);
    if (x_events.size() < std::max(x_size, kProviderEvents))
      return push({event, failed, {first, first + length}});
  } catch (const std::bad_alloc&) {
    // A lack of memory is treated like a lack of room.
  }
  ERDMA_WARN(EQ, "event queue overrun with %zu events unread\n", x_events.size());
  x_overrun = true;
  signal();
}

void EventQueue::push(Event event) {
  x_events.push_back(std::move(event));
  signal();
}

void EventQueue::pop() noexcept {
  x_events.pop_front();
  signal();
}

/// Makes the wait descriptor readable if and only if readable() is true.
void EventQueue::signal() noexcept {
  if (!x_wait || x_signaled == readable()) return;
  x_signaled = readable();
  eventfd_t count = 1;
  const int rc = x_signaled ? eventfd_write(x_wait.get(), 1) : eventfd_read(x_wait.get(), &count);
  if (rc != 0) ERDMA_WARN(EQ, "eventfd of an event queue: %s\n", fi_strerror(errno));
}

util::Result<EventQueue*> make_event_queue(const fi_eq_attr* attr, uint32_t api_version,
                                           Children* siblings, void* context) {
  if (!attr) return -FI_EINVAL;
  if (const int rc = check_attr(*attr)) return rc;
  util::Fd wait;
  if (attr->wait_obj != FI_WAIT_NONE) {
    wait.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wait) return util::refused_descriptor("an event queue", errno);
  }
  auto made = std::make_unique<EventQueue>(*attr, std::move(wait), api_version, siblings, context);
  if (attr->wait_obj == FI_WAIT_SET)
    if (const int joined = made->join(attr->wait_set)) return joined;
  return made.release();
}

int open_event_queue(fid_fabric* fid, fi_eq_attr* attr, fid_eq** eq, void* context) noexcept {
  return abi_call([&] {
    if (!eq) return -FI_EINVAL;
    Fabric& fabric = Fabric::from(fid);
    util::Result<EventQueue*> made =
        make_event_queue(attr, fabric.api_version, &fabric.children(), context);
    if (!made) return made.error();
    *eq = *made;
    return 0;
  });
}

}  // namespace erdma::fabric
