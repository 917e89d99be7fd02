// Functions of libibverbs that the device does not support.
#include <cerrno>

#include "softerdma/objects.h"

namespace {

template <typename T>
T* absent() {
  errno = EOPNOTSUPP;
  return nullptr;
}

}  // namespace

SOFTERDMA_API ibv_context* ibv_import_device(int) {
  return absent<ibv_context>();
}
SOFTERDMA_API ibv_pd* ibv_import_pd(ibv_context*, uint32_t) {
  return absent<ibv_pd>();
}
SOFTERDMA_API void ibv_unimport_pd(ibv_pd*) {}
SOFTERDMA_API ibv_mr* ibv_import_mr(ibv_pd*, uint32_t) {
  return absent<ibv_mr>();
}
SOFTERDMA_API void ibv_unimport_mr(ibv_mr*) {}
SOFTERDMA_API ibv_dm* ibv_import_dm(ibv_context*, uint32_t) {
  return absent<ibv_dm>();
}
SOFTERDMA_API void ibv_unimport_dm(ibv_dm*) {}
SOFTERDMA_API int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;
}
SOFTERDMA_API int ibv_resize_cq(ibv_cq*, int) {
  return EOPNOTSUPP;
}

SOFTERDMA_API ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) {
  return absent<ibv_srq>();
}
SOFTERDMA_API int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) {
  return EOPNOTSUPP;
}
SOFTERDMA_API int ibv_query_srq(ibv_srq*, ibv_srq_attr*) {
  return EOPNOTSUPP;
}
SOFTERDMA_API int ibv_destroy_srq(ibv_srq*) {
  return EOPNOTSUPP;
}

SOFTERDMA_API ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) {
  return absent<ibv_ah>();
}
SOFTERDMA_API int ibv_init_ah_from_wc(ibv_context*, uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  return EOPNOTSUPP;
}
SOFTERDMA_API ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, uint8_t) {
  return absent<ibv_ah>();
}
SOFTERDMA_API int ibv_destroy_ah(ibv_ah*) {
  return EOPNOTSUPP;
}
SOFTERDMA_API int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return EOPNOTSUPP;
}
SOFTERDMA_API int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return EOPNOTSUPP;
}

SOFTERDMA_API ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) {
  return nullptr;
}
SOFTERDMA_API int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return EOPNOTSUPP;
}
SOFTERDMA_API int ibv_set_ece(ibv_qp*, ibv_ece*) {
  return EOPNOTSUPP;
}
SOFTERDMA_API int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) {
  return 0;
}
