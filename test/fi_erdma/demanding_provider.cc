// The provider of $DEMANDED_PROVIDER for program.py, in front of which stands a client like
// aws-ofi-nccl of some later version: what asks for FI_THREAD_SAFE also asks to inject 1 MiB.
#include <dlfcn.h>

#include <cstdlib>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

namespace {

decltype(fi_provider::getinfo) g_getinfo = nullptr;

int demand(uint32_t version, const char* node, const char* service, uint64_t flags,
           const fi_info* hints, fi_info** info) {
  if (!hints || !hints->domain_attr || hints->domain_attr->threading != FI_THREAD_SAFE)
    return g_getinfo(version, node, service, flags, hints, info);
  fi_info* const more = fi_dupinfo(hints);
  if (!more) return -FI_ENOMEM;
  more->tx_attr->inject_size = 1 << 20;
  const int status = g_getinfo(version, node, service, flags, more, info);
  fi_freeinfo(more);
  return status;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini(void) {
  void* const library = dlopen(std::getenv("DEMANDED_PROVIDER"), RTLD_NOW | RTLD_LOCAL);
  void* const found = library ? dlsym(library, "fi_prov_ini") : nullptr;
  if (!found) return nullptr;
  fi_provider* const provider = reinterpret_cast<fi_provider* (*)()>(found)();
  g_getinfo = provider->getinfo;
  provider->getinfo = demand;
  return provider;
}
