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
#include "fabric/fid_ops.h"
#include "fabric/poll_set.h"
#include "fabric/shared_receive.h"

namespace erdma::fabric {
namespace {

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) noexcept {
  if (!info || !ep) return -FI_EINVAL;
  return abi_call([&] { return Endpoint::open(Domain::from(domain), *info, ep, context); });
}

int open_endpoint2(fid_domain* domain, fi_info* info, fid_ep** ep, uint64_t flags,
                   void* context) noexcept {
  return flags ? -FI_EINVAL : open_endpoint(domain, info, ep, context);
}

fi_ops_domain g_domain_ops = {
    .size = sizeof(fi_ops_domain),
    .av_open = open_av,
    .cq_open = open_cq,
    .endpoint = open_endpoint,
    .scalable_ep = kNotOffered,
    .cntr_open = open_cntr,
    .poll_open = open_poll_set,
    .stx_ctx = kNotOffered,
    .srx_ctx = open_shared_receive,
    .query_atomic = query_atomic,
    .query_collective = kNotOffered,
    .endpoint2 = open_endpoint2,
};

}  // namespace

int Domain::open(Fabric& fabric, const fi_info& info, fid_domain** domain, void* context) {
  auto made = std::make_unique<Domain>(fabric, info, fabric.settings(), context);
  const int started = made->start(info);
  if (started != 0) return started;
  made->fid.ops = &g_fid_ops<Domain>;
  made->ops = &g_domain_ops;
  made->mr = &g_mr_ops;
  *domain = made.release();
  return 0;
}

}  // namespace erdma::fabric
