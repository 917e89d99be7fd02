#include "fi_erdma/libfabric.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include <rdma/fi_errno.h>

#include "fi_erdma/objects.h"

namespace fi_erdma {
namespace {

constexpr char kName[] = "libfabric.so.1";
constexpr char kProvider[] = "erdma";
constexpr char kPrefix[] = "FI_ERDMA_";

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::optional<Libfabric> Libfabric::open(std::string& fault) {
  void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  Libfabric found;
  const bool whole = library && look_up(library, "fi_version", found.x_version) &&
                     look_up(library, "fi_getinfo", found.x_getinfo) &&
                     look_up(library, "fi_freeinfo", found.x_freeinfo) &&
                     look_up(library, "fi_fabric", found.x_fabric) &&
                     look_up(library, "fi_dupinfo", found.x_dupinfo) &&
                     look_up(library, "fi_strerror", found.x_strerror) &&
                     look_up(library, "fi_getparams", found.x_getparams) &&
                     look_up(library, "fi_freeparams", found.x_freeparams);
  if (whole) return found;
  const char* const text = dlerror();
  fault = text ? text : kName;
  return std::nullopt;
}

const Libfabric& libfabric() {
  static const Libfabric one = [] {
    std::string fault;
    auto opened = Libfabric::open(fault);
    if (!opened) throw std::runtime_error("libfabric can't be loaded: " + fault);
    return *opened;
  }();
  return one;
}

std::string version_text(uint32_t number) {
  return std::to_string(FI_MAJOR(number)) + "." + std::to_string(FI_MINOR(number));
}

std::string Libfabric::version() const {
  return version_text(x_version());
}

std::string Libfabric::path_of(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : "";
}

/// libfabric loads providers when it initializes itself and does not report their paths.
std::string Libfabric::provider_path() const {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != line.npos && line.ends_with("/liberdma-fi.so")) return line.substr(path);
  }
  return {};
}

std::string Libfabric::provider_fault() const {
  const char* const chosen = getenv("FI_PROVIDER_PATH");
  // Without the variable libfabric searches a folder beside its own file.
  std::istringstream folders(chosen ? chosen : path().substr(0, path().rfind('/')) + "/libfabric");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder.starts_with('@')) folder.erase(0, 1);  // libfabric 2: in the order of loading
    const std::string file = folder + "/liberdma-fi.so";
    if (access(file.c_str(), F_OK)) continue;
    if (!dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return dlerror();
  }
  return {};
}

int Libfabric::try_endpoints(const std::function<void()>& look) const try {
  const Info hints = fi_erdma::new_info();
  hints->fabric_attr->prov_name = strdup(kProvider);
  hints->mode = FI_CONTEXT;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  fi_info* found = nullptr;
  const int status = getinfo(FI_VERSION(1, 17), hints.get(), &found);
  const Info list(found);
  for (fi_info* info = found; info; info = info->next) {
    if (std::strcmp(info->fabric_attr->prov_name, kProvider) != 0) continue;
    const DomainOf domain(info);
    Port port(domain.domain.get(), info);
    port.enable();
    look();
  }
  return status;
} catch (const CallFailed& failed) {
  return failed.status;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

std::map<std::string, std::string> Libfabric::variables() const {
  fi_param* params = nullptr;
  int count = 0;
  std::map<std::string, std::string> variables;
  if (x_getparams(&params, &count)) return variables;
  for (int i = 0; i < count; ++i)
    if (std::string_view(params[i].name).starts_with(kPrefix))
      variables[params[i].name] = params[i].help_string;
  x_freeparams(params);
  return variables;
}

std::string Libfabric::error_text(int negative_errno) const {
  return x_strerror(-negative_errno);
}

}  // namespace fi_erdma
