#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

/// What clients pass to fi_getinfo(3), transcribed from their sources. `doctor` and the tests of
/// fi_getinfo ask like them.
namespace fi_erdma {

/// Several calls of a client: it makes the next one if the provider offers nothing.
struct Attempt {
  uint32_t api;  ///< 0: that of the libfabric for which the client was built
  /// `hints` come from fi_allocinfo(3). `offer` is the answer to a call of API 0.0 without hints,
  /// from which MPICH takes some of its own.
  void (*ask)(fi_info& hints, const fi_info& offer);
};

struct Client {
  const char* name;  ///< for the option --for
  const char* part;  ///< version or commit, and the component of the client
  std::span<const Attempt> attempts;
  bool gpu_alone = false;  ///< without GPU memory the client expects no answer
  bool pci = false;        ///< the client refuses a device that has no PCI address
};

namespace hints {

inline void order_sends(fi_info& hints) {
  hints.tx_attr->msg_order = FI_ORDER_SAS;
  hints.rx_attr->msg_order = FI_ORDER_SAS;
}

constexpr int kBasicBits = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
constexpr uint64_t kComm = FI_LOCAL_COMM | FI_REMOTE_COMM;

// github.com/aws/aws-ofi-nccl, commit 2daf7d30: sendrecv_get_hints() of src/nccl_ofi_sendrecv.cpp,
// get_hints() of src/nccl_ofi_rdma.cpp.

inline void ask_nccl(fi_info& hints, const fi_info&) {
  hints.caps = kComm | FI_TAGGED | FI_MSG;
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.ep_attr->type = FI_EP_RDM;
  order_sends(hints);
  hints.domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ENDPOINT | kBasicBits;
  hints.domain_attr->mr_key_size = 2;
  hints.domain_attr->threading = FI_THREAD_SAFE;
}
inline void ask_nccl_gpu(fi_info& hints, const fi_info& offer) {
  ask_nccl(hints, offer);
  hints.caps |= FI_HMEM | FI_RMA | FI_READ;
  hints.domain_attr->mr_mode |= FI_MR_HMEM;
}
inline void ask_nccl_rdma(fi_info& hints, const fi_info&) {
  hints.caps = FI_MSG | FI_RMA | FI_HMEM | kComm;
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_HMEM | FI_MR_ENDPOINT | kBasicBits;
  hints.domain_attr->mr_key_size = 2;
  hints.domain_attr->threading = FI_THREAD_COMPLETION;
  hints.domain_attr->cq_data_size = 4;
}
// The calls of API 1.20 are those with DMA-BUF.
inline constexpr Attempt kNcclSendrecv[] = {{FI_VERSION(1, 20), ask_nccl_gpu},
                                            {FI_VERSION(1, 18), ask_nccl_gpu},
                                            {FI_VERSION(1, 6), ask_nccl_gpu},
                                            {FI_VERSION(1, 6), ask_nccl}};
inline constexpr Attempt kNcclRdma[] = {{FI_VERSION(1, 20), ask_nccl_rdma},
                                        {FI_VERSION(1, 18), ask_nccl_rdma}};

// github.com/open-mpi/ompi, v4.1.4 and v5.0.7: ompi/mca/mtl/ofi/mtl_ofi_component.c,
// opal/mca/btl/ofi/btl_ofi_component.c.

inline void ask_mtl_4(fi_info& hints, const fi_info&) {
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.caps = FI_TAGGED | kComm | FI_DIRECTED_RECV;
  hints.ep_attr->type = FI_EP_RDM;
  order_sends(hints);
  hints.tx_attr->op_flags = FI_COMPLETION;
  hints.rx_attr->op_flags = FI_COMPLETION;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->cq_data_size = 4;
  hints.domain_attr->av_type = FI_AV_MAP;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
}
inline void ask_mtl_5(fi_info& hints, const fi_info& offer) {
  ask_mtl_4(hints, offer);
  hints.caps |= FI_MSG;
  hints.domain_attr->mr_mode = FI_MR_ALLOCATED;
}
inline void ask_mtl_5_gpu(fi_info& hints, const fi_info& offer) {
  ask_mtl_5(hints, offer);
  hints.caps |= FI_HMEM;
  hints.domain_attr->mr_mode |= FI_MR_HMEM;
}
inline void ask_btl_4(fi_info& hints, const fi_info&) {
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.caps = FI_RMA | FI_ATOMIC;
  hints.ep_attr->type = FI_EP_RDM;
  hints.tx_attr->iov_limit = 1;
  hints.rx_attr->iov_limit = 1;
  hints.tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints.domain_attr->mr_mode = kBasicBits;
}
inline void ask_btl_5(fi_info& hints, const fi_info& offer) {
  ask_btl_4(hints, offer);
  hints.domain_attr->mr_mode |= FI_MR_ENDPOINT;
}
inline void ask_btl_5_gpu(fi_info& hints, const fi_info& offer) {
  ask_btl_5(hints, offer);
  hints.caps |= FI_HMEM;
  hints.domain_attr->mr_mode |= FI_MR_HMEM;
}
inline constexpr Attempt kMtl4[] = {{FI_VERSION(1, 5), ask_mtl_4}};
inline constexpr Attempt kBtl4[] = {{FI_VERSION(1, 5), ask_btl_4}};
// Version 5 asks with API 1.9 where libfabric does not know 1.18.
inline constexpr Attempt kMtl5[] = {{FI_VERSION(1, 18), ask_mtl_5_gpu},
                                    {FI_VERSION(1, 9), ask_mtl_5_gpu},
                                    {FI_VERSION(1, 18), ask_mtl_5},
                                    {FI_VERSION(1, 9), ask_mtl_5}};
inline constexpr Attempt kBtl5[] = {{FI_VERSION(1, 18), ask_btl_5_gpu},
                                    {FI_VERSION(1, 9), ask_btl_5_gpu},
                                    {FI_VERSION(1, 18), ask_btl_5},
                                    {FI_VERSION(1, 9), ask_btl_5}};

// github.com/pmodels/mpich, v5.0.1: find_provider() of src/mpid/ch4/netmod/ofi/init_provider.c,
// with the capability set "default", as for each provider whose name MPICH does not know.

inline void ask_mpich(fi_info& hints, const fi_info& offer) {
  hints.mode = FI_CONTEXT | FI_ASYNC_IOV | FI_RX_CQ_DATA | FI_CONTEXT2;
  hints.caps = offer.caps;
  if (const char* const name = offer.fabric_attr->prov_name)
    hints.fabric_attr->prov_name = strdup(name);
  hints.ep_attr->type = FI_EP_RDM;
  hints.ep_attr->mem_tag_format = 0x00C0'0000'7FFF'FFFF;
  order_sends(hints);
  hints.tx_attr->msg_order |=
      FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
  hints.tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
  hints.rx_attr->op_flags = FI_COMPLETION;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints.domain_attr->av_type = FI_AV_TABLE;
  hints.domain_attr->cq_data_size = 4;
#ifdef FI_RESTRICTED_COMP
  hints.domain_attr->mode = FI_RESTRICTED_COMP;
#endif
  hints.domain_attr->mr_mode = FI_MR_ENDPOINT;
}
inline void ask_mpich_of_any_order(fi_info& hints, const fi_info& offer) {
  ask_mpich(hints, offer);
  hints.tx_attr->msg_order = offer.tx_attr->msg_order;
}
inline void ask_mpich_of_any_mode(fi_info& hints, const fi_info& offer) {
  ask_mpich_of_any_order(hints, offer);
  hints.domain_attr->mr_mode = offer.domain_attr->mr_mode;
}
inline constexpr Attempt kMpich[] = {
    {0, ask_mpich}, {0, ask_mpich_of_any_order}, {0, ask_mpich_of_any_mode}};

// github.com/uxlfoundation/oneCCL, 2021.14 (commit b382bf7): init() of src/atl/ofi/atl_ofi.cpp,
// atl_ofi_get_prov_list() of atl_ofi_helper.cpp. FI_HMEM is for other providers.

inline void ask_oneccl(fi_info& hints, const fi_info&) {
  hints.mode = FI_CONTEXT;
  hints.caps = FI_TAGGED;
  hints.ep_attr->type = FI_EP_RDM;
  // oneCCL takes these two from the answer to an earlier call, which does not ask for them.
  hints.ep_attr->tx_ctx_cnt = 1;
  hints.ep_attr->rx_ctx_cnt = 1;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints.domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->data_progress = FI_PROGRESS_MANUAL;
}
inline constexpr Attempt kOneccl[] = {{FI_VERSION(1, 10), ask_oneccl}};

// github.com/Sandia-OpenSHMEM/SOS, commit 8649160d (after v1.5.3): query_for_fabric() of
// src/transport_ofi.c, configured with --enable-ofi-mr=basic.

inline void ask_shmem(fi_info& hints, const fi_info&) {
  hints.caps = FI_RMA | FI_ATOMIC | FI_RMA_EVENT;
  hints.ep_attr->type = FI_EP_RDM;
  hints.tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints.tx_attr->inject_size = sizeof(long double);
  std::free(hints.rx_attr);
  hints.rx_attr = nullptr;
  hints.domain_attr->data_progress = FI_PROGRESS_AUTO;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints.domain_attr->mr_mode = kBasicBits;
  hints.domain_attr->mr_key_size = 1;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
}
inline constexpr Attempt kShmem[] = {{FI_VERSION(1, 5), ask_shmem}};

}  // namespace hints

inline constexpr Client kClients[] = {
    {"nccl", "SENDRECV", hints::kNcclSendrecv},
    {"nccl", "RDMA", hints::kNcclRdma, true, true},
    {"openmpi", "4.1 mtl/ofi", hints::kMtl4},
    {"openmpi", "4.1 btl/ofi", hints::kBtl4},
    {"openmpi", "5.0 mtl/ofi", hints::kMtl5},
    {"openmpi", "5.0 btl/ofi", hints::kBtl5},
    {"mpich", "5.0", hints::kMpich},
    {"oneccl", "2021.14", hints::kOneccl},
    {"shmem", "1.5.3", hints::kShmem},
};

}  // namespace fi_erdma
