#include "fabric/cq.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "fabric/fid_ops.h"
#include "util/log.h"
#include "util/no_cancellation.h"

namespace erdma::fabric {

// --- reading ------------------------------------------------------------------------------------

template <typename E>
inline ssize_t CompletionQueue::read_locked(void* entries, size_t count,
                                            fi_addr_t* sources) noexcept {
  if (!x_ring.readable()) progress();
  return x_ring.read<E>(entries, count, sources);
}

/// A read of 0 entries: makes progress. Returns 0 if there is something to read, else -FI_EAGAIN.
ssize_t CompletionQueue::probe() noexcept {
  progress();
  return x_ring.readable() ? 0 : -FI_EAGAIN;
}

template <typename E>
inline ssize_t CompletionQueue::read(void* entries, size_t count, fi_addr_t* sources) noexcept {
  if (count != 0 && !entries) [[unlikely]]
    return -FI_EINVAL;
  Rest next = Rest::none;
  ssize_t result;
  {
    const util::DataGuard guard(x_lock);
    result = count == 0 ? probe() : read_locked<E>(entries, count, sources);
    next = next_rest(result != -FI_EAGAIN);
  }
  if (next != Rest::none) [[unlikely]]
    rest(next, [this] { return x_ring.readable(); });
  return result;
}

/// A signal handler of the application ends the wait, as fi_cq_signal(3) does. A forked child takes
/// what was reported before the fork, and never waits.
template <typename E>
ssize_t CompletionQueue::read_blocking(void* entries, size_t count, const void* condition,
                                       int timeout_ms, fi_addr_t* sources) noexcept {
  WaitObject* wait = wait_object();
  if (!wait) return -FI_ENOSYS;
  if (count != 0 && !entries) return -FI_EINVAL;
  const size_t threshold =
      std::clamp<size_t>(reinterpret_cast<uintptr_t>(condition), 1, x_max_threshold);
  // The threshold is an optimisation, so a thread ignores it while other threads wait too.
  const auto enough = [&] {
    if (x_ring.size() >= threshold || x_ring.holds_error()) return true;
    return x_ring.size() > 0 && blocked() > 0;
  };
  const Deadline deadline(timeout_ms);
  std::unique_lock lock(x_lock.data());
  const WaitObject::Ticket ticket = wait->enter();
  ssize_t result;
  Slept how = Slept::woken;
  for (;;) {
    const bool over = !x_lock.owned() || wait->signalled(ticket) || deadline.left() == 0 ||
                      how == Slept::interrupted;
    if (!enough()) progress();
    if (over || enough()) {
      result = count != 0 ? x_ring.read<E>(entries, count, sources) : probe();
      break;
    }
    how = sleep(lock, deadline);
  }
  wait->leave(ticket);
  return result == -FI_EAGAIN && !x_lock.owned() ? -FI_EOPBADSTATE : result;
}

ssize_t CompletionQueue::read_error(fi_cq_err_entry* error, uint64_t) noexcept {
  if (!error) return -FI_EINVAL;
  const util::DataGuard guard(x_lock);
  return x_ring.read_error(error, x_api_version);
}

// --- signal, wait, close ------------------------------------------------------------------------

int CompletionQueue::signal() noexcept {
  WaitObject* wait = wait_object();
  if (!wait) return -FI_ENOSYS;
  wait->signal();
  return 0;
}

Readiness CompletionQueue::prepare_wait() noexcept {
  const util::DataGuard guard(x_lock);
  if (poll() || wait_object()->take_signal()) return Readiness::news;
  return watch() ? Readiness::armed : Readiness::busy;
}

int CompletionQueue::close() noexcept {
  if (const util::Guard guard(x_lock); in_use()) return -FI_EBUSY;
  return end(this);
}

// --- C entry points -----------------------------------------------------------------------------

namespace {

template <typename E, typename... Sources>
ssize_t cq_read(fid_cq* cq, void* entries, size_t count, Sources... sources) noexcept {
  return CompletionQueue::from(cq).read<E>(entries, count, sources...);
}

template <typename E, typename... Sources>
ssize_t cq_sread(fid_cq* cq, void* entries, size_t count, Sources... sources, const void* condition,
                 int timeout_ms) noexcept {
  const util::NoCancellation until_return;
  return CompletionQueue::from(cq).read_blocking<E>(entries, count, condition, timeout_ms,
                                                    sources...);
}

const char* cq_strerror(fid_cq*, int provider_error, const void*, char* text,
                        size_t length) noexcept {
  const char* description = fi_strerror(provider_error == INT_MIN ? 0 : std::abs(provider_error));
  if (text && length != 0) {
    std::strncpy(text, description, length - 1);
    text[length - 1] = '\0';
  }
  return description;
}

template <typename E>
fi_ops_cq g_cq_ops = [] {
  auto ops = refusing<fi_ops_cq>();
  ops.read = cq_read<E>;
  ops.readfrom = cq_read<E, fi_addr_t*>;
  ops.readerr = entry<&CompletionQueue::read_error>;
  ops.sread = cq_sread<E>;
  ops.sreadfrom = cq_sread<E, fi_addr_t*>;
  ops.signal = entry<&CompletionQueue::signal>;
  ops.strerror = cq_strerror;
  return ops;
}();

/// Null if the format is unknown.
fi_ops_cq* ops_for(int format) noexcept {
  switch (format) {
    case FI_CQ_FORMAT_UNSPEC:
    case FI_CQ_FORMAT_CONTEXT:
      return &g_cq_ops<fi_cq_entry>;
    case FI_CQ_FORMAT_MSG:
      return &g_cq_ops<fi_cq_msg_entry>;
    case FI_CQ_FORMAT_DATA:
      return &g_cq_ops<fi_cq_data_entry>;
    case FI_CQ_FORMAT_TAGGED:
      return &g_cq_ops<fi_cq_tagged_entry>;
    default:
      return nullptr;
  }
}

int check(const fi_cq_attr& attr) noexcept {
  const int format = enum_value(attr.format);
  const int condition = enum_value(attr.wait_cond);
  if (!ops_for(format)) {
    ERDMA_INFO(CQ, "format %d is unknown\n", format);
    return -FI_EINVAL;
  }
  if (attr.flags & ~FI_AFFINITY) {
    ERDMA_INFO(CQ, "flags 0x%llx are unknown\n", static_cast<unsigned long long>(attr.flags));
    return -FI_EINVAL;
  }
  if (enum_value(attr.wait_obj) != FI_WAIT_NONE && condition != FI_CQ_COND_NONE &&
      condition != FI_CQ_COND_THRESHOLD) {
    ERDMA_INFO(CQ, "wait condition %d is unknown\n", condition);
    return -FI_EINVAL;
  }
  return 0;
}

/// The largest number of entries that a blocking read may wait for: 1, or with FI_CQ_COND_THRESHOLD
/// the size of the queue.
size_t max_threshold(const fi_cq_attr& attr) noexcept {
  if (enum_value(attr.wait_cond) != FI_CQ_COND_THRESHOLD) return 1;
  return attr.size ? attr.size : CompletionRing::kInitialCapacity;
}

}  // namespace

CompletionQueue::CompletionQueue(const QueueParent& parent, const fi_cq_attr& attr,
                                 std::unique_ptr<WaitObject> wait, void* context)
    : FidObject(FI_CLASS_CQ, context, parent.children),
      Pollable(parent, attr.wait_obj, std::move(wait)),
      x_ring(attr.size),
      x_api_version(parent.api_version),
      x_max_threshold(max_threshold(attr)) {
  ops = ops_for(attr.format);
}

util::Result<CompletionQueue*> make_cq(const QueueParent& parent, const fi_cq_attr* attr,
                                       void* context) {
  if (!attr) return -FI_EINVAL;
  if (const int checked = check(*attr)) return checked;
  return Pollable::make<CompletionQueue>(parent, *attr, context);
}

int open_cq(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) noexcept {
  return open_in(domain, attr, cq, context, make_cq);
}

}  // namespace erdma::fabric
