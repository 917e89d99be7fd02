#include "fabric/shared_receive.h"

#include <algorithm>
#include <memory>

#include <rdma/fi_errno.h>

#include "fabric/endpoint_ops.h"
#include "fabric/endpoint_options.h"
#include "fabric/fid_ops.h"
#include "fabric/info.h"
#include "hmem/cuda.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

/// A context without capabilities of its own has those of its domain.
uint64_t caps_of(const Domain& domain, const fi_rx_attr* attr) noexcept {
  return attr && attr->caps ? attr->caps : domain.caps();
}

}  // namespace

ssize_t SharedReceive::receive(protocol::ReceiveArgs args) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  if (x_cuda) args.device = x_cuda->any_device(args.iov, args.count);
  const util::DataGuard guard(x_domain.lock());
  bool matched = false;
  const int status = x_receives.post(args, matched);
  if (matched) keep_armed();
  return status;
}

ssize_t SharedReceive::probe(protocol::ReceiveArgs args, protocol::Probe kind) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  if (x_cuda) args.device = x_cuda->any_device(args.iov, args.count);
  const util::DataGuard guard(x_domain.lock());
  if (x_endpoints.empty()) return -FI_ENOCQ;
  const int status = x_receives.probe(args, kind);
  keep_armed();
  return status;
}

ssize_t SharedReceive::cancel(void* context) noexcept {
  if (!owned()) return -FI_EOPBADSTATE;
  const util::DataGuard guard(x_domain.lock());
  if (x_endpoints.empty()) return -FI_ENOCQ;
  const int status = x_receives.cancel(context);
  keep_armed();  // the failure counts, so that deferred works may be due
  return status;
}

void SharedReceive::keep_armed() noexcept {
  for (EndpointDriver* endpoint : x_endpoints) endpoint->worked();
}

protocol::CompletionEntry& SharedReceive::succeed(bool report) noexcept {
  return x_endpoints.front()->ports().received.succeed(report);
}

void SharedReceive::fail(const protocol::ErrorCompletion& completion) noexcept {
  x_endpoints.front()->ports().received.fail(completion);
}

// --- open, bind, close --------------------------------------------------------------------------

SharedReceive::SharedReceive(Domain& domain, const fi_rx_attr* attr, void* context)
    : FidObject(FI_CLASS_SRX_CTX, context, &domain.children()),
      x_domain(domain),
      x_defaults(caps_of(domain, attr), attr ? attr->op_flags : 0, true),
      x_cuda(domain.cuda_for(caps_of(domain, attr))),
      x_receives(*this),
      x_min_multi_recv(kDefaultMinMultiRecv) {
  ops = &g_shared_receive_ops;
  cm = &g_refusing_ops<fi_ops_cm>;
  msg = &g_shared_message_ops;
  tagged = &g_shared_tagged_ops;
  rma = &g_refusing_ops<fi_ops_rma>;
  atomic = &g_refusing_ops<fi_ops_atomic>;
  collective = &g_refusing_ops<fi_ops_collective>;
}

/// FI_ENABLE succeeds without doing anything, for applications that enable receive contexts as
/// other providers need it.
int SharedReceive::control(int command, void*) noexcept {
  return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

int SharedReceive::close() noexcept {
  if (const util::Guard guard(x_domain.lock()); x_bound) return -FI_EBUSY;
  delete this;
  return 0;
}

int SharedReceive::add(EndpointDriver& endpoint, const AddressVector& av) {
  if (!x_endpoints.empty() && x_av != &av) {
    ERDMA_WARN(EP_CTRL, "endpoints of one shared receive context must have the same AV\n");
    return -FI_EINVAL;
  }
  if (std::find(x_endpoints.begin(), x_endpoints.end(), &endpoint) == x_endpoints.end())
    x_endpoints.push_back(&endpoint);
  x_av = &av;
  return 0;
}

// --- options ------------------------------------------------------------------------------------

int SharedReceive::get_option(int name, void* value, size_t* length) noexcept {
  if (name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  return give_option(x_min_multi_recv, value, length);
}

int SharedReceive::set_option(int name, const void* value, size_t length) noexcept {
  if (name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  const util::Guard guard(x_domain.lock());
  if (!take_option(value, length, x_min_multi_recv)) return -FI_EINVAL;
  x_receives.set_min_multi_recv(x_min_multi_recv);
  return 0;
}

// --- entry points -------------------------------------------------------------------------------

namespace {

int check_attr(Domain& domain, fi_rx_attr& attr) {
  fi_info info{};
  info.caps = attr.caps & FI_HMEM;
  info.rx_attr = &attr;
  return info.caps && !domain.cuda_for(FI_HMEM) ? -FI_EINVAL
                                                : check_info(domain.api_version(), info);
}

}  // namespace

int open_shared_receive(fid_domain* fid, fi_rx_attr* attr, fid_ep** srx, void* context) noexcept {
  if (!srx) return -FI_EINVAL;
  return abi_call([&] {
    Domain& domain = Domain::from(fid);
    if (attr)
      if (const int bad = check_attr(domain, *attr)) return bad;
    auto made = std::make_unique<SharedReceive>(domain, attr, context);
    *srx = made.release();
    return 0;
  });
}

}  // namespace erdma::fabric
