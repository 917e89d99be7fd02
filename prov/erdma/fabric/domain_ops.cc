// The C entry points of a domain: fi_domain(3).
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "fabric/abi.h"
#include "fabric/av.h"
#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/domain.h"
#include "fabric/endpoint.h"
#include "fabric/endpoint_ops.h"
#include "fabric/fabric.h"
#include "fabric/fid_stubs.h"
#include "fabric/poll_set.h"
#include "fabric/shared_receive.h"

namespace erdma::fabric {
namespace {

int close_domain(fid_t domain) noexcept {
  return Domain::from(domain).close();
}

int bind_domain(fid_t domain, fid_t object, uint64_t flags) noexcept {
  return Domain::from(domain).bind(object, flags);
}

int open_av_entry(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context) noexcept {
  return open_av(Domain::from(domain), attr, av, context);
}

int open_cq_entry(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) noexcept {
  return open_cq(Domain::from(domain), attr, cq, context);
}

int open_cntr_entry(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr,
                    void* context) noexcept {
  return open_cntr(Domain::from(domain), attr, cntr, context);
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) noexcept {
  if (!info || !ep) return -FI_EINVAL;
  return abi_call([&] { return Endpoint::open(Domain::from(domain), *info, ep, context); });
}

int open_endpoint2(fid_domain* domain, fi_info* info, fid_ep** ep, uint64_t flags,
                   void* context) noexcept {
  return flags ? -FI_EINVAL : open_endpoint(domain, info, ep, context);
}

int control_domain(fid_t domain, int command, void* argument) noexcept {
  return abi_call([&] { return Domain::from(domain).control(command, argument); });
}

fi_ops g_domain_fid_ops = {
    .size = sizeof(fi_ops),
    .close = close_domain,
    .bind = bind_domain,
    .control = control_domain,
    .ops_open = no_ops_open,
    .tostr = no_tostr,
    .ops_set = no_ops_set,
};

fi_ops_domain g_domain_ops = {
    .size = sizeof(fi_ops_domain),
    .av_open = open_av_entry,
    .cq_open = open_cq_entry,
    .endpoint = open_endpoint,
    .scalable_ep = not_offered,
    .cntr_open = open_cntr_entry,
    .poll_open = open_poll_set,
    .stx_ctx = not_offered,
    .srx_ctx = open_shared_receive,
    .query_atomic = query_atomic,
    .query_collective = not_offered,
    .endpoint2 = open_endpoint2,
};

}  // namespace

int Domain::open(Fabric& fabric, const fi_info& info, fid_domain** domain, void* context) {
  auto made = std::make_unique<Domain>(fabric, info, fabric.settings(), context);
  const int started = made->start(info);
  if (started != 0) return started;
  made->fid.ops = &g_domain_fid_ops;
  made->ops = &g_domain_ops;
  made->mr = &g_mr_ops;
  *domain = made.release();
  return 0;
}

}  // namespace erdma::fabric
