#include "fabric/info_refusal.h"

#include <strings.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string_view>
#include <type_traits>

#include "fabric/info_offer.h"
#include "util/lock.h"

namespace erdma::fabric {
namespace {

/// Flags that only libfabric's own layers set (OFI_CORE_PROV_ONLY, OFI_GETINFO_INTERNAL).
constexpr uint64_t kLayerFlags = 1ull << 59 | 1ull << 58;

constexpr unsigned kMostRefusals = 3;  ///< so often the same reason occurs before it is told

thread_local bool t_layer_asks = false;
thread_local bool t_in_getinfo = false;

/// A reason that is kept back. It has no destructor, since libfabric's end comes after those of
/// C++ objects.
struct KeptBack {
  util::EpochLock lock;
  bool offered = false;  ///< the provider offered something to hints
  pid_t process = 0;
  unsigned times = 0;
  char reason[512] = "";

  /// A forked child knows nothing of its parent.
  void be_of(pid_t caller) noexcept {
    if (process == caller) return;
    process = caller;
    offered = false;
    times = 0;
  }
};
static_assert(std::is_trivially_destructible_v<KeptBack>);
constinit KeptBack g_kept;
constexpr size_t kMostBytes = sizeof(g_kept.reason) - 1;

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
  t_in_getinfo = true;
}
GetinfoCall::~GetinfoCall() {
  t_layer_asks = t_in_getinfo = false;
}

void GetinfoCall::offers() const noexcept {
  if (t_layer_asks) return;
  const std::lock_guard guard(g_kept.lock);
  g_kept.be_of(getpid());
  g_kept.offered = true;
  g_kept.times = 0;
}

bool keep_back(const std::string& reason) noexcept {
  if (!t_in_getinfo || !refusal_matters() || util::notice_level() == util::NoticeLevel::info ||
      util::log_takes(FI_LOG_WARN, FI_LOG_CORE))
    return false;
  const std::lock_guard guard(g_kept.lock);
  g_kept.be_of(getpid());
  if (g_kept.offered) return true;
  const bool other = g_kept.times > 0 && reason.compare(0, kMostBytes, g_kept.reason) != 0;
  if (other || g_kept.times + 1 == kMostRefusals) return false;
  g_kept.reason[reason.copy(g_kept.reason, kMostBytes)] = '\0';
  ++g_kept.times;
  return true;
}

/// The process may end in a signal handler that interrupted one of the functions above.
void tell_kept_back() noexcept {
  const std::unique_lock guard(g_kept.lock, std::try_to_lock);
  if (!guard) return;
  g_kept.be_of(getpid());
  if (g_kept.times > 0) util::tell(util::Cause::no_data, "refused: %s", g_kept.reason);
  g_kept.times = 0;
}

bool refusal_matters() noexcept {
  return !t_layer_asks && asked_alone(provider_filter());
}

}  // namespace erdma::fabric
