#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#include "fabric/av.h"
#include "fabric/completion_port.h"
#include "fabric/domain.h"
#include "fabric/endpoint_alias.h"
#include "fabric/op_defaults.h"
#include "fabric/progress.h"
#include "fabric/transport_set.h"
#include "protocol/engine.h"
#include "transport/transport.h"
#include "util/process_epoch.h"
#include "util/socket_address.h"

namespace erdma::fabric {

class EventQueue;
class SharedReceive;
class Work;
struct Trigger;

/// One FI_EP_RDM endpoint. Data entry points (endpoint_messages, _rma, _atomic.cc) are reached
/// only after fi_enable: before, the tables in place refuse with -FI_EOPBADSTATE. Methods are
/// spread over endpoint, endpoint_bind, endpoint_hmem, endpoint_options and endpoint_progress.cc.
/// Invariant: bound objects outlive it; their fi_close is -FI_EBUSY until then.
class Endpoint final : public fid_ep,
                       public ProgressSource,
                       public RegionUser,
                       private AvListener,
                       public protocol::Router {
 public:
  static Endpoint& from(fid_ep* ep) noexcept { return static_cast<Endpoint&>(*ep); }
  static Endpoint& from(fid_t f) noexcept { return from(reinterpret_cast<fid_ep*>(f)); }

  /// fi_endpoint(3).
  static int open(Domain& domain, const fi_info& info, fid_ep** ep, void* context);

  Endpoint(Domain& domain, const fi_info& info, void* context);
  ~Endpoint();

  int bind(fid_t object, uint64_t flags);
  int enable();
  int close() noexcept;
  int control(int command, void* argument);
  int get_name(void* address, size_t* length) noexcept;
  int set_name(const void* address, size_t length) noexcept;
  int get_option(int name, void* value, size_t* length) noexcept;
  int set_option(int name, const void* value, size_t length);
  ssize_t cancel(void* context) noexcept;
  ssize_t room(bool transmit) const noexcept;
  int open_alias(const struct fi_alias& wanted);
  void alias_closed(EndpointAlias& alias) noexcept;

  // For a shared receive context, under the domain lock.
  CompletionPort& received() noexcept { return x_received; }
  /// The engine did something: what others rely on is looked after.
  void worked() noexcept {
    if (x_attention) [[unlikely]]
      attend();
  }

  // For works, under the domain lock.
  /// For FI_TRIGGER: the condition in the context of an operation.
  int trigger_of(void* context, Trigger& trigger) noexcept;
  /// Queues an operation whose arguments were checked.
  int defer(const protocol::SendArgs& args, const Trigger& trigger) noexcept;
  int defer(const protocol::ReceiveArgs& args, const Trigger& trigger) noexcept;
  int defer(const protocol::OneSidedArgs& args, const Trigger& trigger) noexcept;
  Domain& domain() noexcept { return x_domain; }
  /// Whether works may be queued for it.
  bool triggerable() const noexcept { return x_engine && (x_caps & FI_TRIGGER); }
  /// Posts it. As the engine's calls.
  int fire(Work& work) noexcept;
  /// Where operations of its kind complete.
  CompletionPort& port_of(const Work& work) noexcept;
  /// While there are works, every step of an endpoint may be what one waits for.
  void expect_works(bool on) noexcept {
    x_attention = uint8_t(on ? x_attention | kWorks : x_attention & ~kWorks);
  }

  // Data path.
  const SendDefaults& send_defaults() const noexcept { return x_send_defaults; }
  const ReceiveDefaults& receive_defaults() const noexcept { return x_receive_defaults; }
  ssize_t send(const protocol::SendArgs& args) noexcept;
  ssize_t one_sided(const protocol::OneSidedArgs& args) noexcept;
  /// The short way of one_sided(), defined where it is used (endpoint_rma.cc). False: nothing
  /// happened.
  bool access(const protocol::AccessArgs& args) noexcept;
  ssize_t receive(const protocol::ReceiveArgs& args) noexcept;
  ssize_t probe(const protocol::ReceiveArgs& args, protocol::Probe kind) noexcept;
  // The same where buffers may be device memory.
  ssize_t send_any(const protocol::SendArgs& args) noexcept;
  ssize_t one_sided_any(protocol::OneSidedArgs args) noexcept;
  ssize_t receive_any(protocol::ReceiveArgs args) noexcept;
  ssize_t probe_any(protocol::ReceiveArgs args, protocol::Probe kind) noexcept;

  // ProgressSource.
  int progress() noexcept override;
  bool arm() noexcept override;
  void disarm() noexcept override;
  int wait_fds(int* fds, int room) const noexcept override;

  // RegionUser.
  void drive() noexcept override { progress(); }
  void abandon(const protocol::Region& region) noexcept override;
  void revoke(uint64_t key) noexcept override;
  void stop_waiting(uint64_t key, bool all) noexcept override;
  void lend(Counter& cntr) override { attach_counter(cntr); }
  void take_back(Counter& cntr) noexcept override;

 private:
  void on_av_insert(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept override;
  void on_av_remove(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept override;
  util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept override;
  transport::Link* detour(const util::SocketAddress& address, int status) noexcept override;

  int bind_cq(CompletionQueue& cq, uint64_t flags);
  int bind_counter(Counter& cntr, uint64_t flags);
  int bind_av(AddressVector& av);
  int bind_eq(EventQueue& eq);
  int bind_shared(SharedReceive& shared);
  int check_bindings() const noexcept;
  void attach_counter(Counter& cntr);
  CompletionPort& port_of(uint64_t event) noexcept;
  CallsOn calls() const noexcept;
  void leave_shared() noexcept;
  void announce_descriptors() noexcept;
  bool slept_on() const noexcept;
  void keep_armed() noexcept;
  /// As worked(), where another object is in the middle of something: works must wait.
  void told() noexcept {
    if (x_attention & kArmed) keep_armed();
  }
  void wake_sleepers() noexcept;
  void attend() noexcept;
  void compute_defaults() noexcept;
  void drain() noexcept;
  void detach() noexcept;
  int take_port(const void* address, size_t length) noexcept;
  int set_min_multi_recv(size_t bytes) noexcept;
  bool owned() const noexcept { return x_epoch == util::process_epoch(); }
  int op_flags(uint64_t* flags, bool set) noexcept;
  int permit_shared_memory(bool permitted) noexcept;
  int permit_cuda(bool permitted);

  // Hot.
  Domain& x_domain;
  std::unique_ptr<protocol::Engine> x_engine;  ///< null until enabled
  const uint32_t x_epoch;
  SendDefaults x_send_defaults;
  ReceiveDefaults x_receive_defaults;
  static constexpr uint8_t kArmed = 1, kWorks = 2;
  uint8_t x_attention = 0;  ///< what is to be done after each step of the engine
  CompletionPort x_sent;
  CompletionPort x_received;

  // Of one-sided operations: the queues of the two above, with counters of their own.
  CompletionPort x_reads;
  CompletionPort x_writes;
  CompletionPort x_remote_reads;
  CompletionPort x_remote_writes;
  const protocol::OneSidedSetup x_one_sided;

  // Cold.
  TransportSet x_transports;
  util::SocketAddress x_name;  ///< asked for; the bound one is x_transports.name
  AddressVector* x_av = nullptr;
  EventQueue* x_eq = nullptr;
  SharedReceive* x_shared = nullptr;  ///< receives are posted there
  const bool x_wants_shared;          ///< and must be
  std::vector<EndpointAlias*> x_aliases;
  std::vector<Counter*> x_counters;
  const uint64_t x_caps;
  uint64_t x_tx_flags;
  uint64_t x_rx_flags;
  const size_t x_inject_size;
  size_t x_min_multi_recv;
  size_t x_max_msg_size;
  bool x_shared_memory;  ///< FI_OPT_SHARED_MEMORY_PERMITTED and FI_ERDMA_SHM
  bool x_detour_logged = false;
  std::string x_key;              ///< of the job
  hmem::DeviceMemory* x_devices;  ///< null without FI_HMEM
  bool x_cuda_permitted = true;   ///< FI_OPT_CUDA_API_PERMITTED
};

inline ssize_t Endpoint::send(const protocol::SendArgs& args) noexcept {
  if (!owned()) [[unlikely]]
    return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const int status = x_engine->post_send(args);
  worked();
  return status;
}

inline ssize_t Endpoint::one_sided(const protocol::OneSidedArgs& args) noexcept {
  if (!owned()) [[unlikely]]
    return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const int status = x_engine->post_one_sided(args);
  worked();
  return status;
}

inline ssize_t Endpoint::receive(const protocol::ReceiveArgs& args) noexcept {
  if (!owned()) [[unlikely]]
    return -FI_EOPBADSTATE;
  util::Guard guard(x_domain.lock());
  const int status = x_engine->post_receive(args);
  worked();
  return status;
}

}  // namespace erdma::fabric
