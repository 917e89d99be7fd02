#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <rdma/fabric.h>

namespace fi_erdma {

/// libfabric with its providers, as an application on this host gets it. It is opened at run time,
/// since this program must also work where libfabric cannot be loaded.
class Libfabric {
 public:
  /// On failure returns nothing and sets `fault` to the error text of the loader.
  static std::optional<Libfabric> open(std::string& fault);

  std::string version() const;
  std::string path() const { return path_of(reinterpret_cast<const void*>(x_getinfo)); }
  /// The file of the loaded erdma provider; empty if none is loaded.
  std::string provider_path() const;
  /// Why the dynamic loader refuses the provider that libfabric finds; empty if it finds none.
  std::string provider_fault() const;

  /// Opens an endpoint in each domain that erdma offers without hints, and calls `look` while it is
  /// open. Returns 0, or the error of the first endpoint that cannot be opened.
  int try_endpoints(const std::function<void()>& look) const;
  /// The variables of erdma, each with its help text.
  std::map<std::string, std::string> variables() const;

  /// The libfabric functions of the same names.
  uint32_t api() const { return x_version(); }
  fi_info* new_info() const { return x_dupinfo(nullptr); }
  /// `source`: null, or an address of this host.
  int getinfo(uint32_t api, const fi_info* hints, fi_info** list,
              const char* source = nullptr) const {
    return x_getinfo(api, source, nullptr, source ? FI_SOURCE : 0, hints, list);
  }
  void free(fi_info* list) const { x_freeinfo(list); }
  int fabric(fi_fabric_attr* attributes, fid_fabric** fabric) const {
    return x_fabric(attributes, fabric, nullptr);
  }
  std::string error_text(int negative_errno) const;

 private:
  static std::string path_of(const void* symbol);

  decltype(&::fi_version) x_version = nullptr;
  decltype(&::fi_getinfo) x_getinfo = nullptr;
  decltype(&::fi_freeinfo) x_freeinfo = nullptr;
  decltype(&::fi_fabric) x_fabric = nullptr;
  decltype(&::fi_dupinfo) x_dupinfo = nullptr;
  decltype(&::fi_strerror) x_strerror = nullptr;
  decltype(&::fi_getparams) x_getparams = nullptr;
  decltype(&::fi_freeparams) x_freeparams = nullptr;
};

/// The libfabric of this process, opened by the first call. Throws if there is none.
const Libfabric& libfabric();

/// "1.17", of a number of FI_VERSION().
std::string version_text(uint32_t number);

}  // namespace fi_erdma
