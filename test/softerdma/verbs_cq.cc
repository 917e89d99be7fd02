// Completion queues and channels.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "softerdma/fork.h"
#include "softerdma/process.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

using namespace softerdma;

SOFTERDMA_API ibv_comp_channel* ibv_create_comp_channel(ibv_context* handle) {
  Context& context = Context::from(handle);
  Process& process = *context.process;
  auto* channel = new Channel;
  channel->context = handle;
  channel->refcnt = 0;
  {
    std::lock_guard guard(process.mutex);
    channel->number = process.next_number++;
  }
  // The channel is a named pipe, as peers in other network namespaces write to it without this
  // process's help.
  std::string path = process.fabric.own_path("e" + std::to_string(channel->number));
  channel->fd = -1;
  if (mkfifo(path.c_str(), 0600) == 0) {
    channel->fd = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  if (channel->fd < 0) {
    delete channel;
    return nullptr;
  }
  channel->write_fd = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK);
  ++context.children;
  ++process.channels;
  return channel;
}

SOFTERDMA_API int ibv_destroy_comp_channel(ibv_comp_channel* handle) {
  auto* channel = static_cast<Channel*>(handle);
  Context& context = Context::from(handle->context);
  if (context.process == Process::existing()) {
    if (channel->cqs.load() != 0) return EBUSY;
    unlink(context.process->fabric.own_path("e" + std::to_string(channel->number)).c_str());
    --context.process->channels;
  }
  close(channel->fd);
  close(channel->write_fd);
  --context.children;
  delete channel;
  return 0;
}

SOFTERDMA_API ibv_cq* ibv_create_cq(ibv_context* handle, int cqe, void* cq_context,
                                    ibv_comp_channel* channel, int vector) {
  Context& context = Context::from(handle);
  Process& process = *context.process;
  const Limits& limits = context.device->config.limits;
  static_cast<void>(keep_from_children(nullptr, 0));  // liberdma does this with its queues
  // The driver reports every failure as EIO.
  errno = EIO;
  if (command(*context.device) != 0) return nullptr;
  if (cqe < 1 || static_cast<uint64_t>(cqe) > limits.max_cqe) return nullptr;
  if (vector < 0 || vector >= handle->num_comp_vectors) return nullptr;
  auto cq = std::make_unique<Cq>();
  cq->size = std::bit_ceil(std::max(64u, static_cast<uint32_t>(cqe)));
  cq->context = handle;
  cq->channel = channel;
  cq->comp_channel = static_cast<Channel*>(channel);
  cq->cq_context = cq_context;
  cq->cqe = static_cast<int>(cq->size);
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  std::lock_guard guard(process.mutex);
  cq->handle = process.next_number++;
  cq->map = Mapping::create(process.fabric.own_path("c" + std::to_string(cq->handle)),
                            sizeof(CqShared) + cq->size * sizeof(CqSlot));
  if (!cq->map) {
    errno = EIO;
    return nullptr;
  }
  CqShared& shared = cq->shared();
  shared.number = cq->handle;
  shared.size = cq->size;
  shared.channel = cq->comp_channel != nullptr ? cq->comp_channel->number : 0;
  cq->local.reset(new LocalCqe[cq->size]);
  if (cq->comp_channel != nullptr) {
    ++cq->comp_channel->cqs;
    ++channel->refcnt;
  }
  ++context.children;
  std::lock_guard cqs_guard(process.cqs_mutex);
  process.cqs.emplace(cq->handle, cq.get());
  return cq.release();
}

SOFTERDMA_API int ibv_destroy_cq(ibv_cq* handle) {
  auto* cq = static_cast<Cq*>(handle);
  Context& context = Context::from(handle->context);
  Process& process = *context.process;
  if (&process == Process::existing()) {
    if (cq->users.load() != 0) return EBUSY;
    if (const int error = command(*context.device, false)) return error;
    if (cq->got_events.load() != cq->acked_events.load()) {
      violation("ibv_destroy_cq with %u events not acknowledged: libibverbs waits forever",
                cq->got_events.load() - cq->acked_events.load());
    }
    std::lock_guard guard(process.cqs_mutex);
    process.cqs.erase(cq->handle);
    unlink(process.fabric.own_path("c" + std::to_string(cq->handle)).c_str());
  }
  if (cq->comp_channel != nullptr) {
    --cq->comp_channel->cqs;
    --cq->channel->refcnt;
  }
  --context.children;
  delete cq;
  return 0;
}

SOFTERDMA_API int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  Process& process = *Context::from(channel->context).process;
  for (;;) {
    uint64_t number = 0;
    if (read(channel->fd, &number, sizeof number) != sizeof number) return -1;
    std::lock_guard guard(process.cqs_mutex);
    auto found = process.cqs.find(static_cast<uint32_t>(number));
    if (found == process.cqs.end()) continue;  // the queue was destroyed meanwhile
    ++found->second->got_events;
    *cq = found->second;
    *cq_context = found->second->cq_context;
    return 0;
  }
}

SOFTERDMA_API void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  static_cast<Cq*>(cq)->acked_events += count;
}
