#pragma once

#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <rdma/rdma_cma.h>

#include "softerdma/objects.h"
#include "softerdma/process.h"

/// The connection manager does what librdmacm and the kernel's iWARP CM do. All functions except
/// those that wait run under Process::mutex.
namespace softerdma {

/// Sets errno and returns -1, as calls of librdmacm do.
inline int fail(int error) {
  errno = error;
  return -1;
}

struct CmEvent : rdma_cm_event {
  CmId* owner = nullptr;  ///< the event is removed with this id
  uint64_t owner_number = 0;
  unsigned char data[256] = {};
};

/// fd counts the events (a semaphore).
struct CmChannel : rdma_event_channel {
  std::deque<CmEvent*> events;
};

enum class CmStage : uint8_t {
  idle,
  bound,
  resolved,
  listening,
  connecting,
  requested,
  connected,
  over
};

struct CmId : rdma_cm_id {
  Process* process = nullptr;
  uint64_t number = 0;
  CmStage stage = CmStage::idle;
  bool synchronous = false;  ///< the id has its own channel, and calls wait for their events
  bool made_cqs = false;
  bool disconnecting = false;
  unsigned unacknowledged = 0;
  CmId* listener = nullptr;
  int backlog = 0;
  int waiting = 0;  ///< requests that were neither accepted nor rejected
  int port_holder = -1;
  bool in_tcp = false;                     ///< port_holder listens
  std::vector<std::string> registrations;  ///< files "listen.<ip>.<port>" and "….listens"
  Qp* bound = nullptr;  ///< queue pair with this `cm`; the application may clear rdma_cm_id::qp
  // State of the other side.
  uint32_t peer_slot = 0;
  uint32_t peer_generation = 0;
  uint64_t peer_number = 0;
  uint32_t peer_qpn = 0;
  uint64_t deadline_ns = 0;  ///< time limit of a handshake; 0 = none
  std::unique_ptr<ibv_qp_init_attr> passive_qp;
  ibv_pd* passive_pd = nullptr;

  static CmId& from(rdma_cm_id* id) noexcept { return *static_cast<CmId*>(id); }
};

class CmState {
 public:
  explicit CmState(Process& process) : x_process(process) {}
  CmState(const CmState&) = delete;
  CmState& operator=(const CmState&) = delete;
  ~CmState();

  void on_request(const Message& message);
  void on_accepted(const Message& message);
  void on_rejected(const Message& message);
  /// Ends handshakes whose time is over. Returns nanoseconds until the next, or UINT64_MAX.
  uint64_t expire(uint64_t now);

  CmId* find(uint64_t number);
  /// Accepts TCP connections to the listeners. True if there may be more of them later.
  bool meet_callers();
  /// Returns true if a port mapper runs on this host. It gives listeners another port than they ask
  /// for.
  bool maps_ports();
  /// The device's context that ids share.
  ibv_context* context(Device& device);
  size_t own_contexts() const noexcept { return x_contexts.size(); }

  std::map<uint64_t, CmId*> ids;
  uint64_t next_number = 1;

 private:
  void close_outside();

  Process& x_process;
  std::map<Device*, ibv_context*> x_contexts;
  std::vector<int> x_callers;  ///< TCP connections that have sent nothing yet
  int x_mapper = -1;           ///< the socket of the port mapper
};

/// Adds an event to the id's channel.
void cm_post(CmId& owner, rdma_cm_event_type type, int status, const Message* message = nullptr,
             CmId* reported = nullptr);
/// Removes an id's events from its channel.
void cm_forget_events(CmId& id);
/// Ends the connection of `qp` on this side: tells the peer, and posts DISCONNECTED once.
void cm_connection_ended(Process& process, Qp& qp, bool post_event);
/// Handles the peer's end of the connection.
void cm_peer_ended(Process& process, Qp& qp);
/// Waits, like the kernel, for the outcome of a connect that is under way.
void cm_wait_for_outcome(Process& process, const Qp& qp);
void cm_wait_for_outcome(Process& process, const CmId& id);
/// Makes the port's TCP socket listen, so that it answers outside the simulation.
void cm_listen_in_tcp(CmId& id);
/// Begins a connection of standard mode at a TCP port of any program, and closes it.
void cm_knock(const sockaddr_in& at);
int cm_wait(CmId& id, rdma_cm_event_type expected);
CmId* cm_new_id(Process& process, rdma_event_channel* channel, void* context, rdma_port_space ps);

}  // namespace softerdma
