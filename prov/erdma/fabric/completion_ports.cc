#include "fabric/completion_ports.h"

#include <algorithm>

#include <rdma/fi_errno.h>

namespace erdma::fabric {

CompletionPorts::CompletionPorts(ProgressSource& source, void* context) noexcept
    : sent(&source),
      received(&source),
      reads(&source),
      writes(&source),
      remote_reads(&source),
      remote_writes(&source),
      x_source(source),
      x_all{{FI_SEND, sent},    {FI_RECV, received},
            {FI_READ, reads},   {FI_REMOTE_READ, remote_reads},
            {FI_WRITE, writes}, {FI_REMOTE_WRITE, remote_writes}} {
  for (CompletionPort* port : {&sent, &reads, &writes}) port->endpoint_context = context;
}

int CompletionPorts::bind(CompletionQueue& cq, uint64_t flags, const util::OptionalLock& lock) {
  constexpr uint64_t kDirections = FI_TRANSMIT | FI_RECV;
  if (flags & ~(kDirections | FI_SELECTIVE_COMPLETION)) return -FI_EBADFLAGS;
  if (!(flags & kDirections) || !cq.takes(lock)) return -FI_EINVAL;
  if (((flags & FI_TRANSMIT) && sent.cq) || ((flags & FI_RECV) && received.cq)) return -FI_EINVAL;
  const bool selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
  if (sent.cq != &cq && received.cq != &cq) cq.attach(x_source);
  if (flags & FI_TRANSMIT) {
    sent.cq = reads.cq = writes.cq = &cq;
    sent.selective = reads.selective = writes.selective = selective;
  }
  if (flags & FI_RECV) {
    received.cq = remote_writes.cq = &cq;
    received.selective = selective;
  }
  return 0;
}

int CompletionPorts::bind(Counter& cntr, uint64_t flags, const util::OptionalLock& lock) {
  constexpr uint64_t kEvents =
      FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if (flags & ~kEvents) return -FI_EBADFLAGS;
  if (!flags || !cntr.takes(lock)) return -FI_EINVAL;
  for (const auto& [event, port] : x_all)
    if ((flags & event) && port.cntr) return -FI_EINVAL;
  watch_counter(cntr);
  for (const auto& [event, port] : x_all)
    if (flags & event) port.cntr = &cntr;
  return 0;
}

void CompletionPorts::watch_counter(Counter& cntr) {
  if (std::find(x_counters.begin(), x_counters.end(), &cntr) != x_counters.end()) return;
  x_counters.push_back(&cntr);
  cntr.attach(x_source);
}

void CompletionPorts::unwatch_counter(Counter& cntr) noexcept {
  for (const Of& one : x_all)
    if (one.port.cntr == &cntr) return;
  std::erase(x_counters, &cntr);
  cntr.detach(x_source);
}

void CompletionPorts::detach() noexcept {
  for (CompletionQueue* cq : {sent.cq, received.cq})
    if (cq) cq->purge(&x_source);
  if (sent.cq) sent.cq->detach(x_source);
  if (received.cq && received.cq != sent.cq) received.cq->detach(x_source);
  for (Counter* cntr : x_counters) cntr->detach(x_source);
}

void CompletionPorts::sources_changed() noexcept {
  for (CompletionQueue* cq : {sent.cq, received.cq})
    if (cq) cq->sources_changed();
  for (Counter* cntr : x_counters) cntr->sources_changed();
}

bool CompletionPorts::sleeping() const noexcept {
  for (const CompletionQueue* cq : {sent.cq, received.cq})
    if (cq && cq->sleeping()) return true;
  return std::any_of(x_counters.begin(), x_counters.end(),
                     [](const Counter* cntr) { return cntr->sleeping(); });
}

void CompletionPorts::wake() noexcept {
  for (CompletionQueue* cq : {sent.cq, received.cq})
    if (cq && cq->sleeping()) cq->wake();
  for (Counter* cntr : x_counters)
    if (cntr->sleeping()) cntr->wake();
}

}  // namespace erdma::fabric
