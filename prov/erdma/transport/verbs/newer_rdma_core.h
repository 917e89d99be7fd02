#pragma once

#include <dlfcn.h>

namespace erdma::transport::verbs {

/// A function of the loaded rdma-core that the rdma-core of the build did not have; null if the
/// loaded one does not have it either.
template <typename Function>
Function* of_newer_rdma_core(const char* name) noexcept {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace erdma::transport::verbs
