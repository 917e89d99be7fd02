#pragma once

#include <infiniband/verbs.h>

#include "softerdma/objects.h"

namespace softerdma {

/// Asks the adapter to create, change or destroy an object. The caller sleeps meanwhile and holds
/// no lock. Returns 0, or an errno, in which case nothing happened.
int command(const Device& device, bool makes = true) noexcept;
/// Returns null with errno set on failure. Caller holds Process::mutex.
ibv_context* open_context(Process& process, Device& device);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init);
/// Moves a queue pair to ERR: traffic ends in both directions, and waiting requests are flushed if
/// the device's Flush setting says so. Caller holds Process::mutex.
void enter_error(Process& process, Qp& qp);
/// Waits until no peer accesses this process's memory through `qp`; with a key: that region.
void quiesce(Process& process, Qp& qp, uint32_t key = 0);
/// Tells the other side that the connection has ended. Caller holds Process::mutex.
void tell_peer(Process& process, Qp& qp, MessageType type, Cause cause, bool by_application);
/// Connects to a peer's queue pair. Returns 0 or a positive errno. Caller holds sq_lock.
int bind_remote(Process& process, Qp& qp, uint32_t slot, uint32_t generation, uint32_t qpn);

}  // namespace softerdma
