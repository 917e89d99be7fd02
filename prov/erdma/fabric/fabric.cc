#include "fabric/fabric.h"

#include <cstring>
#include <memory>

#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include "fabric/domain.h"
#include "fabric/eq.h"
#include "fabric/info.h"
#include "fabric/info_offer.h"
#include "fabric/wait.h"
#include "fabric/wait_set.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

int open_domain2(fid_fabric* fabric, fi_info* info, fid_domain** domain, uint64_t flags,
                 void* context) noexcept {
  // The only flag that exists, FI_PEER, shares objects with another provider.
  if (flags || !info || !info->domain_attr || !domain) return -FI_EINVAL;
  return abi_call([&] {
    Fabric& self = Fabric::from(fabric);
    if (int rc = check_info(self.api_version, *info)) return rc;
    return Domain::open(self, *info, domain, context);
  });
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) noexcept {
  return open_domain2(fabric, info, domain, 0, context);
}

fi_ops_fabric g_fabric_ops = {
    .size = sizeof(fi_ops_fabric),
    .domain = open_domain,
    .passive_ep = kNotOffered,
    .eq_open = open_event_queue,
    .wait_open = open_wait_set,
    .trywait = try_wait,
    .domain2 = open_domain2,
};

}  // namespace

Fabric::Fabric(void* context) noexcept : FidObject(FI_CLASS_FABRIC, context) {
  ops = &g_fabric_ops;
}

int Fabric::open(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept {
  if (!attr || !fabric) return -FI_EINVAL;
  if (attr->name && strcmp(attr->name, kFabricName) != 0) {
    ERDMA_INFO(FABRIC, "there is no fabric %s, only %s\n", attr->name, kFabricName);
    return -FI_ENODATA;
  }
  return abi_call([&] {
    Fabric* const made = std::make_unique<Fabric>(context).release();
    g_open_fabrics.add(*made);
    *fabric = made;
    return 0;
  });
}

int Fabric::close() noexcept {
  if (const int open = x_children.count(); open > 0) {
    ERDMA_WARN(FABRIC, "fabric is busy: %d domains, event queues and wait sets are open\n", open);
    return -FI_EBUSY;
  }
  g_open_fabrics.remove(*this);
  delete this;
  return 0;
}

}  // namespace erdma::fabric
