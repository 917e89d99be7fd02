#pragma once

#include <dlfcn.h>
#include <execinfo.h>

#include <cerrno>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "fake/scarce_memory.h"

/// Refuses calls of the adapter, and counts the provider's allocations. The header defines
/// functions of the adapter's libraries, so only one file of a program may include it.
namespace erdma::fake {

inline long g_refused = kNever;   ///< number of the first refused call
inline long g_many_calls = 1;     ///< number of refused calls in a row
inline long g_calls = 0;          ///< calls by counted() so far
inline unsigned long g_told = 0;  ///< warnings about the end of a link

/// Returns true, and sets this errno, if the call is to fail.
inline bool refuses(int error = ENOMEM) {
  if (!t_counted) return false;
  const long number = g_calls++;
  if (g_refused == kNever || number < g_refused || number >= g_refused + g_many_calls) return false;
  errno = error;
  return true;
}

template <typename Function>
Function* adapters(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

inline decltype(ibv_context_ops::post_send) g_post_send;
inline decltype(ibv_context_ops::post_recv) g_post_recv;

inline int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  static const int kErrors[] = {ENOMEM, EIO, EINVAL};
  if (!refuses()) return g_post_send(qp, request, bad);
  *bad = request;
  return kErrors[g_refused % 3];
}
inline int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  if (!refuses()) return g_post_recv(qp, request, bad);
  *bad = request;
  return ENOMEM;
}
inline void replace_posts(ibv_context& context) {
  g_post_send = context.ops.post_send;
  g_post_recv = context.ops.post_recv;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_recv;
}

extern "C" const char __executable_start, etext;

inline bool of_provider(const void* caller) {
  return caller >= static_cast<const void*>(&__executable_start) &&
         caller < static_cast<const void*>(&etext);
}
/// The adapter's own allocations do not count. Allocations by the standard library on behalf of the
/// provider do.
inline bool concerns_provider(const void* caller) {
  if (of_provider(caller)) return true;
  static const void* const standard = [] {
    Dl_info info{};
    dladdr(dlsym(RTLD_DEFAULT, "_ZSt9terminatev"), &info);
    return static_cast<const void*>(info.dli_fbase);
  }();
  const auto of_standard = [](const void* address) {
    Dl_info info{};
    return dladdr(address, &info) && info.dli_fbase == standard;
  };
  if (!of_standard(caller)) return false;
  void* frames[16];
  const int count = backtrace(frames, 16);
  int i = 0;
  while (i < count && frames[i] != caller) ++i;
  while (i < count && of_standard(frames[i])) ++i;
  return i < count && of_provider(frames[i]);
}

}  // namespace erdma::fake

#undef ibv_reg_mr
#define ERDMA_REFUSED(returned, value, name, types, ...)         \
  extern "C" returned name types {                               \
    static const auto real = erdma::fake::adapters(name, #name); \
    return erdma::fake::refuses() ? value : real(__VA_ARGS__);   \
  }
ERDMA_REFUSED(ibv_qp*, nullptr, ibv_create_qp, (ibv_pd * pd, ibv_qp_init_attr* attr), pd, attr)
ERDMA_REFUSED(ibv_cq*, nullptr, ibv_create_cq,
              (ibv_context * context, int entries, void* user, ibv_comp_channel* channel,
               int vector),
              context, entries, user, channel, vector)
ERDMA_REFUSED(int, EINVAL, ibv_modify_qp, (ibv_qp * qp, ibv_qp_attr* attr, int mask), qp, attr,
              mask)
ERDMA_REFUSED(ibv_mr*, nullptr, ibv_reg_mr, (ibv_pd * pd, void* address, size_t length, int access),
              pd, address, length, access)
ERDMA_REFUSED(ibv_mr*, nullptr, ibv_reg_mr_iova2,
              (ibv_pd * pd, void* address, size_t length, uint64_t iova, unsigned access), pd,
              address, length, iova, access)
ERDMA_REFUSED(int, -1, rdma_create_id,
              (rdma_event_channel * channel, rdma_cm_id** id, void* context, rdma_port_space space),
              channel, id, context, space)
ERDMA_REFUSED(int, -1, rdma_resolve_addr,
              (rdma_cm_id * id, sockaddr* from, sockaddr* to, int timeout), id, from, to, timeout)
ERDMA_REFUSED(int, -1, rdma_resolve_route, (rdma_cm_id * id, int timeout), id, timeout)
ERDMA_REFUSED(int, -1, rdma_connect, (rdma_cm_id * id, rdma_conn_param* with), id, with)
ERDMA_REFUSED(int, -1, rdma_accept, (rdma_cm_id * id, rdma_conn_param* with), id, with)
ERDMA_REFUSED(int, -1, rdma_reject, (rdma_cm_id * id, const void* bytes, uint8_t length), id, bytes,
              length)
