#pragma once

#include <infiniband/verbs.h>

#include "softerdma/objects.h"

namespace softerdma {

/// Creating, changing and destroying is asked of the adapter, which takes its time; the caller
/// sleeps meanwhile, and holds no lock. 0, or an errno: nothing happened.
int command(const Device& device, bool makes = true) noexcept;
/// Null with errno set. Caller holds Process::mutex.
ibv_context* open_context(Process& process, Device& device);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init);
/// Moves a queue pair to ERR: no more traffic in either direction, all that waits is flushed as the
/// device's habit is. Caller holds Process::mutex.
void enter_error(Process& process, Qp& qp);
/// Waits until no peer is within this process's memory on behalf of `qp`.
void quiesce(Process& process, Qp& qp);
/// Tells the other side of a connection that it is over. Caller holds Process::mutex.
void tell_peer(Process& process, Qp& qp, MessageType type, Cause cause, bool by_application);
/// Connects to a peer's queue pair: 0 or a positive errno. Caller holds sq_lock.
int bind_remote(Process& process, Qp& qp, uint32_t slot, uint32_t generation, uint32_t qpn);

}  // namespace softerdma
