#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>

#include "fabric/endpoint_alias.h"
#include "fabric/endpoint_driver.h"
#include "fabric/endpoint_options.h"
#include "fabric/endpoint_statistics.h"
#include "util/socket_address.h"

namespace erdma::fabric {

class EventQueue;
class SharedReceive;

/// One FI_EP_RDM endpoint: its bindings, its name and its state. The data entry points
/// (endpoint_messages, _rma, _atomic.cc) are installed by fi_enable; until then the tables of the
/// fid return -FI_EOPBADSTATE.
/// Invariant: bound objects outlive the endpoint; their fi_close returns -FI_EBUSY while it is
/// open.
class Endpoint final : public FidObject<Endpoint, fid_ep> {
 public:
  /// fi_endpoint(3).
  static int open(Domain& domain, const fi_info& info, fid_ep** ep, void* context);

  Endpoint(Domain& domain, const fi_info& info, void* context);

  int bind(fid_t object, uint64_t flags);
  int enable();
  int control(int command, void* argument);
  int close() noexcept;
  int get_name(void* address, size_t* length) noexcept;
  int set_name(const void* address, size_t length) noexcept;
  ssize_t cancel(void* context) noexcept;

  Domain& domain() noexcept { return x_domain; }
  EndpointDriver& driver() noexcept { return x_driver; }
  EndpointOptions& options() noexcept { return x_options; }
  EndpointAliases& aliases() noexcept { return x_aliases; }
  SendDefaults send_defaults() const noexcept { return x_options.send_defaults(); }
  ReceiveDefaults receive_defaults() const noexcept { return x_options.receive_defaults(); }
  /// True if receives are posted to a shared receive context.
  bool shares_receives() const noexcept { return x_shared != nullptr; }

 private:
  int bind_cq(CompletionQueue& cq, uint64_t flags);
  int bind_counter(Counter& cntr, uint64_t flags);
  int bind_av(AddressVector& av);
  int bind_eq(EventQueue& eq);
  int bind_shared(SharedReceive& shared);
  int check_bindings() noexcept;
  Detached detach() noexcept;
  void report_end(Detached& rest) noexcept;
  int take_port(const void* address, size_t length) noexcept;

  Domain& x_domain;
  EndpointStatistics x_statistics;  ///< outlives the transports, which write its counters
  EndpointDriver x_driver;
  EndpointOptions x_options;
  EndpointAliases x_aliases;
  util::SocketAddress x_name;  ///< the requested name; the transports have the bound one
  AddressVector* x_av = nullptr;
  EventQueue* x_eq = nullptr;
  SharedReceive* x_shared = nullptr;
  const std::string x_key;  ///< of the job
};

/// Returns `error`, the result of a call that is refused before the engine sees it. What FI_MORE
/// has delayed leaves nevertheless (fi_msg(3)).
[[gnu::cold, gnu::noinline]] inline ssize_t refused(Endpoint& ep, int error) noexcept {
  (void)ep.driver().post([](protocol::Engine& engine) {
    engine.let_leave();
    return 0;
  });
  return error;
}

}  // namespace erdma::fabric
