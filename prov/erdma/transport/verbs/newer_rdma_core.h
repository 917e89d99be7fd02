#pragma once

#include <dlfcn.h>

namespace erdma::transport::verbs {

/// A function of the rdma-core that is loaded, which the one for which this was compiled lacked;
/// null if both lack it.
template <typename Function>
Function* of_newer_rdma_core(const char* name) noexcept {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace erdma::transport::verbs
