#pragma once

#include <cstdint>

#include "util/log.h"

/// Who asked for this provider, and so hears why fi_getinfo(3) offers nothing.
namespace erdma::fabric {

/// FI_PROVIDER as libfabric itself reads it; null: not set.
const char* provider_filter() noexcept;

/// Was the provider asked for by name? `filter` is FI_PROVIDER (names separated by commas and
/// semicolons, a leading ^ excludes), `prov_name` that of the hints; either may be null.
bool asked_by_name(const char* filter, const char* prov_name) noexcept;

/// Does FI_PROVIDER name this provider and nothing else? Then the application gets no other answer
/// than ours.
bool asked_alone(const char* filter) noexcept;

/// fi_getinfo(3) while it runs on this thread. Layers of libfabric (ofi_rxm) ask for endpoints to
/// build on, whatever the application asked for: nobody needs to hear of their refusals.
class GetinfoCall {
 public:
  explicit GetinfoCall(uint64_t flags) noexcept;
  ~GetinfoCall();
  GetinfoCall(const GetinfoCall&) = delete;
  GetinfoCall& operator=(const GetinfoCall&) = delete;
};

/// Does the application hear from nobody else why it gets nothing?
bool refusal_matters() noexcept;

}  // namespace erdma::fabric

/// Why hints are refused (-FI_ENODATA): a notice where there will be no other answer.
#define ERDMA_REFUSE(...)                                   \
  do {                                                      \
    if (::erdma::fabric::refusal_matters())                 \
      ERDMA_NOTICE(no_data, CORE, "refused: " __VA_ARGS__); \
    else                                                    \
      ERDMA_INFO(CORE, __VA_ARGS__);                        \
  } while (0)
