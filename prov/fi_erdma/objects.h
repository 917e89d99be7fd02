#pragma once

#include <sys/types.h>

#include <memory>
#include <new>
#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "fi_erdma/libfabric.h"

/// Objects of libfabric, which are closed when they are destroyed.
namespace fi_erdma {

/// A call of libfabric that failed.
struct CallFailed {
  int status;  ///< negative fi_errno
  const char* call;
};
inline void check_call(ssize_t status, const char* call) {
  if (status) throw CallFailed{int(status), call};
}

struct CloseFid {
  template <typename T>
  void operator()(T* object) const noexcept {
    (void)fi_close(&object->fid);
  }
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid>;

/// The object that a call opens. Throws CallFailed, like all that follow.
template <typename T, typename Open>
Fid<T> opened(const char* call, const Open& open) {
  T* object = nullptr;
  check_call(open(&object), call);
  return Fid<T>(object);
}

struct FreeInfo {
  void operator()(fi_info* info) const noexcept { libfabric().free(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;
/// Throws std::bad_alloc.
inline Info new_info() {
  Info info(libfabric().new_info());
  if (!info) throw std::bad_alloc();
  return info;
}

struct DomainOf {
  explicit DomainOf(fi_info* info)
      : fabric(opened<fid_fabric>(
            "fi_fabric", [&](auto** fid) { return libfabric().fabric(info->fabric_attr, fid); })),
        domain(opened<fid_domain>(
            "fi_domain", [&](auto** fid) { return fi_domain(fabric.get(), info, fid, nullptr); })) {
  }

  Fid<fid_fabric> fabric;
  Fid<fid_domain> domain;
};

/// An endpoint, not yet enabled, with the queue and the address vector that it needs.
struct Port {
  Port(fid_domain* domain, fi_info* info, fi_cq_attr cq_attr = {}) {
    fi_av_attr av_attr{};
    av_attr.type = FI_AV_TABLE;
    av = opened<fid_av>("fi_av_open",
                        [&](auto** fid) { return fi_av_open(domain, &av_attr, fid, nullptr); });
    cq = opened<fid_cq>("fi_cq_open",
                        [&](auto** fid) { return fi_cq_open(domain, &cq_attr, fid, nullptr); });
    ep = opened<fid_ep>("fi_endpoint",
                        [&](auto** fid) { return fi_endpoint(domain, info, fid, nullptr); });
    check_call(fi_ep_bind(ep.get(), &av->fid, 0), "fi_ep_bind av");
    check_call(fi_ep_bind(ep.get(), &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind cq");
  }
  void enable() { check_call(fi_enable(ep.get()), "fi_enable"); }
  std::string name() const {
    char bytes[256];
    size_t length = sizeof(bytes);
    check_call(fi_getname(&ep->fid, bytes, &length), "fi_getname");
    return {bytes, length};
  }
  fi_addr_t insert(const std::string& peer) {
    fi_addr_t address = FI_ADDR_UNSPEC;
    const int inserted = fi_av_insert(av.get(), peer.data(), 1, &address, 0, nullptr);
    check_call(inserted == 1 ? 0 : inserted < 0 ? inserted : -FI_EINVAL, "fi_av_insert");
    return address;
  }

  Fid<fid_av> av;
  Fid<fid_cq> cq;
  Fid<fid_ep> ep;
};

}  // namespace fi_erdma
