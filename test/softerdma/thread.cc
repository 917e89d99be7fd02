// The thread does the adapter's background work: connection management, retries, the end of
// connections, and port changes.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "softerdma/cm.h"
#include "softerdma/data_path.h"
#include "softerdma/device.h"
#include "softerdma/fault.h"
#include "softerdma/process.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

namespace softerdma {
namespace {

/// Executes the pending requests of a queue pair. Returns true if some remain. Caller holds
/// Process::mutex.
bool run_queue(Process& process, Qp& qp) {
  std::lock_guard guard(qp.sq_lock);
  qp.kicked.store(false);
  while (!qp.pending.empty() && qp.current() == IBV_QPS_RTS) {
    PendingWork& entry = qp.pending.front();
    Executed result = execute(process, qp, entry.work);
    if (result.outcome == Outcome::lost) {
      uint64_t now = now_ns();
      if (entry.first_try_ns == 0) entry.first_try_ns = now;
      if (now - entry.first_try_ns < qp.device->config.limits.retry_ms * 1'000'000u) return true;
      result = {Outcome::killed, IBV_WC_RETRY_EXC_ERR, Cause::none, false};
    }
    conclude(process, qp, entry.work, result);
    qp.pending.pop_front();
  }
  return false;
}

/// Drops the slots that a dead peer had claimed, as they would block the queue for ever.
void drop_claims(Cq& cq, uint32_t slot) {
  std::lock_guard guard(cq.lock);
  uint64_t head = cq.head.load();
  for (uint64_t position = head; position != head + cq.size; ++position) {
    std::atomic<uint64_t>& state = cq.slot(position).state;
    uint64_t seen = state.load();
    if (CqSlot::phase(seen) == CqSlot::claimed && CqSlot::owner(seen) == slot &&
        cq.shared().at(seen, position)) {
      state.store(cq.shared().word(CqSlot::dropped, 0, position));
    }
  }
}

}  // namespace

void Process::start_thread() {
  // Signals must go to the application's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  x_epoll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event wake{};
  wake.events = EPOLLIN;
  epoll_ctl(x_epoll, EPOLL_CTL_ADD, x_wake, &wake);
  x_thread = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Process::stop_thread() {
  if (!x_thread.joinable()) return;
  tell(MessageType::stop);
  x_thread.join();
  close(x_epoll);
}

int Process::timeout() {
  uint64_t next = cm->expire(now_ns());
  int wait = next == UINT64_MAX ? -1 : static_cast<int>(next / 1'000'000u) + 1;
  auto at_most = [&wait](int ms) { wait = wait < 0 ? ms : std::min(wait, ms); };
  if (x_pending_work || x_queued_messages.load() || release_held(*this)) at_most(1);
  if (fault_file_watched() || cm->meet_callers()) at_most(20);
  return wait;
}

void Process::run() {
  // The fault file is watched before the first event, too.
  int wait = fault_file_watched() ? 0 : -1;
  while (!x_stop) {
    epoll_event events[16];
    int count = epoll_wait(x_epoll, events, 16, wait);
    std::lock_guard guard(mutex);
    if (x_queued_messages.exchange(false)) {
      std::lock_guard peers(x_peers_mutex);
      for (auto& [key, peer] : x_peers) {
        if (!peer->flush()) x_queued_messages.store(true);
      }
    }
    drain_messages();
    watch_peers();
    for (int i = 0; i < count; ++i) {
      if (events[i].data.ptr == nullptr) continue;
      auto* dead = static_cast<PeerProcess*>(events[i].data.ptr);
      std::shared_ptr<PeerProcess> peer;
      {
        std::lock_guard peers(x_peers_mutex);
        auto found = x_peers.find({dead->slot, dead->generation});
        if (found != x_peers.end() && found->second.get() == dead) peer = found->second;
      }
      if (peer != nullptr) peer_died(peer);
    }
    poll_fault_file(*this);
    run_pending();
    wait = timeout();
  }
}

void Process::drain_messages() {
  for (Message message; !x_stop && ::read(x_wake, &message, sizeof message) == sizeof message;) {
    handle(message);
  }
}

/// Watches the peers that were found since the last round.
void Process::watch_peers() {
  std::lock_guard guard(x_peers_mutex);
  for (auto& [key, peer] : x_peers) {
    if (peer->pidfd < 0 || peer->watched) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = peer.get();
    peer->watched = epoll_ctl(x_epoll, EPOLL_CTL_ADD, peer->pidfd, &event) == 0;
  }
}

void Process::peer_died(const std::shared_ptr<PeerProcess>& peer) {
  drain_messages();  // handles the peer's earlier messages
  peer->dead.store(true);
  epoll_ctl(x_epoll, EPOLL_CTL_DEL, peer->pidfd, nullptr);
  {
    std::lock_guard guard(cqs_mutex);
    for (auto& [number, cq] : cqs) drop_claims(*cq, peer->slot);
  }
  for (uint32_t i = 0; i < highest_qp; ++i) {
    Qp* qp = qps[i].load();
    if (qp == nullptr || qp->compat) continue;  // in compat mode, only sends show the death
    bool mine = false;
    {
      std::lock_guard guard(qp->sq_lock);
      mine = qp->remote != nullptr && qp->remote->process == peer;
    }
    if (mine) cm_peer_ended(*this, *qp);
  }
  for (auto& [number, id] : cm->ids) {
    if (id->stage == CmStage::connecting && id->peer_slot == peer->slot &&
        id->peer_generation == peer->generation) {
      id->deadline_ns = 0;
      id->stage = CmStage::over;
      cm_post(*id, RDMA_CM_EVENT_REJECTED, -ECONNRESET);
    }
  }
  std::lock_guard guard(x_peers_mutex);
  x_peers.erase({peer->slot, peer->generation});
}

void Process::run_pending() {
  x_pending_work = false;
  std::vector<uint32_t> again;
  for (uint32_t qpn : x_waiting) {
    Qp* waiting = qp(qpn);
    if (waiting != nullptr && run_queue(*this, *waiting)) again.push_back(qpn);
  }
  x_waiting.swap(again);
  x_pending_work = !x_waiting.empty();
}

void Process::handle(const Message& message) {
  Qp* target = qp(message.qpn);
  switch (message.type) {
    case MessageType::stop:
      x_stop = message.from_slot == fabric.slot();
      break;
    case MessageType::kick:
      if (target != nullptr &&
          std::find(x_waiting.begin(), x_waiting.end(), message.qpn) == x_waiting.end()) {
        x_waiting.push_back(message.qpn);
      }
      break;
    case MessageType::killed:
    case MessageType::closed: {
      if (target == nullptr) break;
      bool own = message.from_slot == fabric.slot() && message.peer_qpn == 0;
      uint32_t from = target->shared().peer_qpn.load();
      if (!own && from != message.peer_qpn) break;
      bool over = target->current() == IBV_QPS_ERR && !target->failed.exchange(false);
      if (over && target->compat) break;
      cm_peer_ended(*this, *target);
      if (message.type == MessageType::killed && !over) {
        ibv_async_event event{};
        event.event_type = IBV_EVENT_QP_FATAL;
        event.element.qp = target;
        target->owner->raise(event);
      }
      break;
    }
    case MessageType::request:
      cm->on_request(message);
      break;
    case MessageType::accepted:
      cm->on_accepted(message);
      break;
    case MessageType::rejected:
      cm->on_rejected(message);
      break;
    case MessageType::port_event:
      for (Context* context : contexts) {
        if (context->device->config.ip != message.source_ip) continue;
        ibv_async_event event{};
        event.event_type = message.status != 0 ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
        event.element.port_num = 1;
        context->raise(event);
      }
      break;
    case MessageType::moved:
      for (auto& [number, id] : cm->ids)
        if (id->verbs != nullptr &&
            Context::from(id->verbs).device->config.ip == message.source_ip) {
          cm_post(*id, RDMA_CM_EVENT_ADDR_CHANGE, 0);
        }
      break;
  }
}

}  // namespace softerdma
