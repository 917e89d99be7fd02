#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

// What fills the slots of an fi_ops table that an object does not implement.
namespace erdma::fabric {

inline int no_bind(fid_t, fid_t, uint64_t) noexcept {
  return -FI_ENOSYS;
}
inline int no_control(fid_t, int, void*) noexcept {
  return -FI_ENOSYS;
}
inline int no_ops_open(fid_t, const char*, uint64_t, void**, void*) noexcept {
  return -FI_ENOSYS;
}
inline int no_tostr(const fid*, char*, size_t) noexcept {
  return -FI_ENOSYS;
}
inline int no_ops_set(fid_t, const char*, uint64_t, void*, void*) noexcept {
  return -FI_ENOSYS;
}

}  // namespace erdma::fabric
