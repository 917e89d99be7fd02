#pragma once

#include <infiniband/verbs.h>

#include "softerdma/objects.h"

namespace softerdma {

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int poll_cq(ibv_cq* cq, int most, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);

enum class Outcome : uint8_t {
  done,
  lost,    ///< the packet got no answer: retry until the retries are exhausted
  killed,  ///< the request completes with `status`, and the connection ends
};
struct Executed {
  Outcome outcome = Outcome::done;
  ibv_wc_status status = IBV_WC_SUCCESS;
  Cause cause = Cause::none;
  bool peer_too = false;  ///< the peer's queue pair fails for the same cause
};

/// Executes one work request to its end. Caller holds sq_lock.
Executed execute(Process& process, Qp& qp, const Work& work);
/// Completes a work request and, if it was killed, begins the end of the connection. Caller holds
/// sq_lock.
void conclude(Process& process, Qp& qp, const Work& work, const Executed& result);
/// Flushes a request if the device's Flush setting says so.
void flush_work(Qp& qp, const Work& work);

/// Adds a completion of this process to the queue.
void push_local(Cq& cq, const LocalCqe& cqe);
/// Takes the next completion; false if there is none. Caller holds Cq::lock.
bool take(Process& process, Cq& cq, ibv_wc& wc);
bool idle(const Cq& cq) noexcept;
/// Writes an event if the queue is armed.
void ring_event(CqShared& shared, bool solicited, int fd) noexcept;

}  // namespace softerdma
