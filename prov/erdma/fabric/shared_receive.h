#pragma once

#include <cstdint>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "fabric/endpoint_driver.h"
#include "fabric/op_defaults.h"
#include "protocol/shared_receives.h"
#include "util/process_epoch.h"

namespace erdma::fabric {

/// One shared receive context: fi_srx_context(3). It has no completion queue: a receive completes
/// on the CQ of the endpoint that received the message, and a receive without a message (cancelled,
/// probed) on the CQ of one of the enabled endpoints. The calls take the domain lock. Invariant:
/// the context outlives its endpoints; fi_close returns -FI_EBUSY while any is bound.
class SharedReceive final : public FidObject<SharedReceive, fid_ep>,
                            private protocol::CompletionSink {
 public:
  SharedReceive(Domain& domain, const fi_rx_attr* attr, void* context);

  // The data path, as in Endpoint. When a receive is posted, its endpoint and the binding of that
  // endpoint's CQ are unknown. So the defaults are those of FI_SELECTIVE_COMPLETION, and
  // CompletionPort::unasked corrects this at the completion.
  const ReceiveDefaults& receive_defaults() const noexcept { return x_defaults; }
  ssize_t receive(protocol::ReceiveArgs args) noexcept;
  ssize_t probe(protocol::ReceiveArgs args, protocol::Probe kind) noexcept;
  ssize_t cancel(void* context) noexcept;

  int get_option(int name, void* value, size_t* length) noexcept;
  int set_option(int name, const void* value, size_t length) noexcept;
  int control(int command, void* argument) noexcept;
  int close() noexcept;

  // For endpoints.
  bool takes(const Domain& domain) const noexcept { return &domain == &x_domain; }
  hmem::Cuda* cuda() const noexcept { return x_cuda; }
  void bound() noexcept { ++x_bound; }
  void unbound() noexcept { --x_bound; }
  /// Called by fi_enable, with the domain lock held. -FI_EINVAL: the other endpoints have another
  /// AV. Throws std::bad_alloc, and may then be repeated.
  int add(EndpointDriver& endpoint, const AddressVector& av);
  void remove(EndpointDriver& endpoint) noexcept { std::erase(x_endpoints, &endpoint); }
  /// Where receives without a message complete: at an enabled endpoint or, if there is none, at
  /// `own`.
  protocol::CompletionSink& sink_or(protocol::CompletionSink& own) noexcept {
    return x_endpoints.empty() ? own : x_endpoints.front()->ports().received;
  }
  protocol::SharedReceives& receives() noexcept { return x_receives; }
  /// Call after what may have started work at any of the endpoints.
  void keep_armed() noexcept;

 private:
  // CompletionSink of receives without a message. x_endpoints is not empty.
  protocol::CompletionEntry& succeed(bool report) noexcept override;
  void fail(const protocol::ErrorCompletion& completion) noexcept override;

  bool owned() const noexcept { return x_epoch == util::process_epoch(); }

  Domain& x_domain;
  const uint32_t x_epoch = util::process_epoch();
  const ReceiveDefaults x_defaults;
  hmem::Cuda* const x_cuda;  ///< null without FI_HMEM
  protocol::SharedReceives x_receives;
  std::vector<EndpointDriver*> x_endpoints;  ///< enabled ones
  const AddressVector* x_av = nullptr;
  unsigned x_bound = 0;
  size_t x_min_multi_recv;
};

/// fi_srx_context(3).
int open_shared_receive(fid_domain* domain, fi_rx_attr* attr, fid_ep** srx, void* context) noexcept;

}  // namespace erdma::fabric
