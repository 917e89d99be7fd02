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

int CompletionPorts::bind(CompletionQueue& cq, uint64_t flags, const util::DomainLock& lock) {
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

int CompletionPorts::bind(Counter& cntr, uint64_t flags, const util::DomainLock& lock) {
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
  x_counters.reserve(x_counters.size() + 1);
  cntr.attach(x_source);
  x_counters.push_back(&cntr);
}

void CompletionPorts::unwatch_counter(Counter& cntr) noexcept {
  for (const Of& one : x_all)
    if (one.port.cntr == &cntr) return;
  std::erase(x_counters, &cntr);
  cntr.detach(x_source);
}

/// Visits each bound queue and counter once.
template <typename Visit>
void CompletionPorts::for_each(Visit&& visit) const {
  if (sent.cq) visit(*sent.cq);
  if (received.cq && received.cq != sent.cq) visit(*received.cq);
  for (Counter* cntr : x_counters) visit(*cntr);
}

void CompletionPorts::detach() noexcept {
  for (CompletionQueue* cq : {sent.cq, received.cq})
    if (cq) cq->purge(&x_source);
  for_each([this](Pollable& bound) { bound.detach(x_source); });
}

void CompletionPorts::sources_changed() noexcept {
  for_each([](Pollable& bound) { bound.sources_changed(); });
}

bool CompletionPorts::sleeping() const noexcept {
  bool any = false;
  for_each([&](const Pollable& bound) { any |= bound.sleeping(); });
  return any;
}

void CompletionPorts::wake() noexcept {
  for_each([](Pollable& bound) {
    if (bound.sleeping()) bound.wake();
  });
}

}  // namespace erdma::fabric
