#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>

#include "fabric/env.h"
#include "fabric/fabric.h"
#include "fabric/info.h"
#include "fabric/info_offer.h"
#include "fabric/info_refusal.h"
#include "transport/verbs/fork_safety.h"
#include "util/log.h"
#include "util/notice.h"
#include "util/process_epoch.h"

namespace erdma {
namespace {

/// Nothing else outlives the fids that the application closes.
void cleanup() noexcept {
  fabric::tell_kept_back();
}

fi_provider g_provider = {
    .version = fabric::kProviderVersion,
    .fi_version = 0,
    .context = {},
    .name = fabric::kProviderName,
    .getinfo = fabric::getinfo,
    .fabric = fabric::Fabric::open,
    .cleanup = cleanup,
};

}  // namespace
}  // namespace erdma

/// The one symbol of the library; libfabric calls it once, when it has loaded it.
extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini() {
  // libfabric skips a provider older than what an application asks. This one follows whichever
  // library loads it, as it uses nothing that a version of the library could lack.
  erdma::g_provider.fi_version = fi_version();
  erdma::util::look_at_standard_error();
  erdma::util::register_fork_handler();
  erdma::util::set_log_provider(&erdma::g_provider);
  erdma::fabric::define_settings(&erdma::g_provider);
  erdma::transport::verbs::prepare_for_forks_early();
  return &erdma::g_provider;
}
