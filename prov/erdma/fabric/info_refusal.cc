#include "fabric/info_refusal.h"

#include <strings.h>

#include <cstdlib>
#include <string_view>

#include "fabric/info_offer.h"

namespace erdma::fabric {
namespace {

/// Flags that only libfabric's own layers set (OFI_CORE_PROV_ONLY, OFI_GETINFO_INTERNAL).
constexpr uint64_t kLayerFlags = 1ull << 59 | 1ull << 58;

thread_local bool t_layer_asks = false;

bool is_provider_name(std::string_view token) noexcept {
  constexpr size_t kLength = sizeof(kProviderName) - 1;
  return token.size() == kLength && strncasecmp(token.data(), kProviderName, kLength) == 0;
}

/// True if the list contains the provider's name. A list that begins with ^ (all except these) does
/// not count.
bool lists_provider(std::string_view list) noexcept {
  if (list.starts_with('^')) return false;
  while (!list.empty()) {
    const size_t end = list.find_first_of(",;");
    if (is_provider_name(list.substr(0, end))) return true;
    list.remove_prefix(end == list.npos ? list.size() : end + 1);
  }
  return false;
}

}  // namespace

const char* provider_filter() noexcept {
  return std::getenv("FI_PROVIDER");  // NOLINT(concurrency-mt-unsafe): as libfabric does
}

bool asked_by_name(const char* filter, const char* prov_name) noexcept {
  return (filter && lists_provider(filter)) || (prov_name && lists_provider(prov_name));
}

bool asked_alone(const char* filter) noexcept {
  return filter && is_provider_name(filter);
}

GetinfoCall::GetinfoCall(uint64_t flags) noexcept {
  t_layer_asks = flags & kLayerFlags;
}
GetinfoCall::~GetinfoCall() {
  t_layer_asks = false;
}

bool refusal_matters() noexcept {
  return !t_layer_asks && asked_alone(provider_filter());
}

}  // namespace erdma::fabric
