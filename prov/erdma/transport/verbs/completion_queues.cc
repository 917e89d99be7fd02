#include "transport/verbs/completion_queues.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/verbs/device.h"
#include "transport/verbs/own_memory.h"
#include "util/fd.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// The interrupt vector for completions. One processor serves each vector, 16 events at a time, so
/// the queues of a process, and the processes of a host, take vectors in turn.
int next_vector(const ibv_context& context) noexcept {
  static std::atomic<unsigned> made{0};
  const unsigned vectors = context.num_comp_vectors > 0 ? unsigned(context.num_comp_vectors) : 1;
  return int((unsigned(getpid()) + made.fetch_add(1, std::memory_order_relaxed)) % vectors);
}

}  // namespace

CompletionQueues::~CompletionQueues() {
  for (uint32_t i = 0; i < count(); ++i)
    if (x_groups[i].events) ibv_ack_cq_events(x_groups[i].cq.get(), x_groups[i].events);
}

int CompletionQueues::open() noexcept {
  x_channel.reset(ibv_create_comp_channel(x_device.context()));
  if (!x_channel) {
    const int error = errno;
    ERDMA_WARN(EP_CTRL, "%s: no completion channel: %s\n", x_device.name().c_str(),
               std::strerror(error));
    return error ? -error : -FI_ENOMEM;
  }
  x_channel_fd = util::PrivateFd(x_channel->fd);
  return util::set_nonblocking(x_channel->fd);
}

int CompletionQueues::reserve(uint32_t entries, CqShare& share) noexcept {
  const std::lock_guard guard(x_mutex);
  for (;;) {
    for (uint32_t i = 0; i < count(); ++i) {
      Group& group = x_groups[i];
      if (group.failed || group.entries - group.reserved < entries) continue;
      group.reserved += entries;
      share = {group.cq.get(), i, entries};
      return 0;
    }
    const int rc = add_group(entries);
    if (rc) return rc;
  }
}

void CompletionQueues::release(const CqShare& share) noexcept {
  if (!share.cq) return;
  const std::lock_guard guard(x_mutex);
  x_groups[share.group].reserved -= share.entries;
}

void CompletionQueues::fail(const ibv_cq* cq) noexcept {
  const std::lock_guard guard(x_mutex);
  for (uint32_t i = 0; i < count(); ++i)
    if (at(i) == cq) x_groups[i].failed = true;
}

void CompletionQueues::leave_open(const CqShare& share) noexcept {
  Group& group = x_groups[share.group];
  (void)x_channel.release();
  x_channel_fd.keep_marked();
  if (group.events) ibv_ack_cq_events(share.cq, std::exchange(group.events, 0));
  (void)group.cq.release();
}

int CompletionQueues::add_group(uint32_t entries) noexcept {
  const uint32_t index = count();
  const uint32_t limit = x_device.limits().max_cqe;
  if (index == kMaxGroups || entries > limit) return -FI_ENOMEM;
  uint32_t wanted = std::min(kFirstEntries << (2 * std::min(index, 8u)), limit);
  wanted = std::max(wanted, entries);
  ibv_context* const context = x_device.context();
  const int vector = next_vector(*context);
  CompletionQueue cq(ibv_create_cq(context, int(wanted), nullptr, x_channel.get(), vector));
  // The locked memory may suffice for a smaller one.
  for (; !cq && wanted / 2 >= entries; wanted /= 2)
    cq.reset(ibv_create_cq(context, int(wanted / 2), nullptr, x_channel.get(), vector));
  if (!cq) {
    // The driver of eRDMA reports EIO for every cause here; for a memory region it reports the
    // actual one.
    const int error = errno;
    (void)OwnMemory().make(x_device, size_t(sysconf(_SC_PAGESIZE)), OwnUse::packets);
    if (x_device.gone()) return -FI_ENODEV;
    ERDMA_NOTICE(locked_memory, EP_CTRL,
                 "%s: no completion queue of %u entries (%s); more locked memory (ulimit -l) or a "
                 "lower FI_ERDMA_MAX_CONNECTIONS may help",
                 x_device.name().c_str(), wanted, std::strerror(error));
    return -FI_ENOMEM;
  }
  x_groups[index].entries = uint32_t(std::max(cq->cqe, 0));
  x_groups[index].cq = std::move(cq);
  x_count.store(index + 1, std::memory_order_release);
  return x_groups[index].entries >= entries ? 0 : -FI_ENOMEM;
}

bool CompletionQueues::arm() noexcept {
  for (uint32_t i = 0; i < count(); ++i) {
    Group& group = x_groups[i];
    if (group.asked || group.failed.load(std::memory_order_relaxed)) continue;
    if (ibv_req_notify_cq(at(i), 0)) return false;
    group.asked = true;
  }
  return true;
}

bool CompletionQueues::take_events() noexcept {
  constexpr unsigned kAcknowledgeAt = 1024;  // because it takes a lock
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  for (uint32_t i = 0; i < count(); ++i) x_groups[i].asked = false;
  while (!ibv_get_cq_event(x_channel.get(), &cq, &context)) {
    for (uint32_t i = 0; i < count(); ++i) {
      Group& group = x_groups[i];
      if (group.cq.get() != cq || ++group.events < kAcknowledgeAt) continue;
      ibv_ack_cq_events(cq, group.events);
      group.events = 0;
    }
  }
  return errno == EAGAIN || errno == EINTR;
}

}  // namespace erdma::transport::verbs
