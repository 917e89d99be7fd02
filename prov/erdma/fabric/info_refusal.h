#pragma once

#include <cstdint>
#include <string>

#include "util/log.h"

/// Decides whether the user must hear why fi_getinfo(3) offers nothing.
namespace erdma::fabric {

/// The variable FI_PROVIDER; null: not set.
const char* provider_filter() noexcept;

/// True if the user or the application asked for the provider by name. `filter` is FI_PROVIDER
/// (names separated by commas and semicolons; a leading ^ excludes them), `prov_name` that of the
/// hints; either may be null.
bool asked_by_name(const char* filter, const char* prov_name) noexcept;

/// True if FI_PROVIDER names this provider and no other. Then no other provider answers the
/// application.
bool asked_alone(const char* filter) noexcept;

/// Exists while fi_getinfo(3) runs on this thread. Layers of libfabric (ofi_rxm) ask for endpoints
/// to build on, whatever the application asked for. Their refusals do not concern the user.
class GetinfoCall {
 public:
  explicit GetinfoCall(uint64_t flags) noexcept;
  ~GetinfoCall();
  GetinfoCall(const GetinfoCall&) = delete;
  GetinfoCall& operator=(const GetinfoCall&) = delete;
  /// To be called if the provider offers something to hints. From then on no mode of memory
  /// regions is told: the process uses the provider.
  void offers() const noexcept;
};

/// True if no other provider will answer the application, so that the user must see the refusal.
bool refusal_matters() noexcept;

/// Within a GetinfoCall: keeps a reason back that would go to standard error, because the client
/// may ask for something else if it is refused this. tell_kept_back() tells it with a second reason
/// or the third time that it occurs, or when the process ends, but not once the provider has
/// offered something to hints. Returns false if the reason is to be told now. With
/// FI_ERDMA_LOG=info nothing is kept back.
bool keep_back(const std::string& reason) noexcept;
/// Tells what was kept back, if anything was. libfabric also calls this (cleanup) when it ends.
void tell_kept_back() noexcept;

}  // namespace erdma::fabric

/// Logs why hints are refused (-FI_ENODATA): as a notice if no other provider will answer.
/// `format` has no newline.
#define ERDMA_REFUSE(format, ...)                                                 \
  do {                                                                            \
    if (::erdma::fabric::refusal_matters())                                       \
      ERDMA_NOTICE(no_data, CORE, "refused: " format __VA_OPT__(, ) __VA_ARGS__); \
    else                                                                          \
      ERDMA_INFO(CORE, format "\n" __VA_OPT__(, ) __VA_ARGS__);                   \
  } while (0)
