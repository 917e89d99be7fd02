#include "fi_erdma/libfabric.h"

#include <dlfcn.h>

#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

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

/// An endpoint and the objects that it needs. They are closed in reverse order.
class Fids {
 public:
  Fids() = default;
  Fids(const Fids&) = delete;
  Fids& operator=(const Fids&) = delete;
  ~Fids() {
    for (size_t i = x_fids.size(); i-- > 0;) fi_close(x_fids[i]);
  }

  int enable_endpoint(decltype(&::fi_fabric) open_fabric, fi_info& info) {
    fid_fabric* fabric = nullptr;
    fid_domain* domain = nullptr;
    fid_cq* cq = nullptr;
    fid_av* av = nullptr;
    fid_ep* ep = nullptr;
    fi_cq_attr cq_attr{};
    fi_av_attr av_attr{};
    int status = keep(open_fabric(info.fabric_attr, &fabric, nullptr), fabric);
    if (!status) status = keep(fi_domain(fabric, &info, &domain, nullptr), domain);
    if (!status) status = keep(fi_cq_open(domain, &cq_attr, &cq, nullptr), cq);
    if (!status) status = keep(fi_av_open(domain, &av_attr, &av, nullptr), av);
    if (!status) status = keep(fi_endpoint(domain, &info, &ep, nullptr), ep);
    if (!status) status = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
    if (!status) status = fi_ep_bind(ep, &av->fid, 0);
    return status ? status : fi_enable(ep);
  }

 private:
  /// Takes a reference, since the call that creates the object is an argument as well.
  template <typename Object>
  int keep(int status, Object* const& object) {
    if (!status) x_fids.push_back(&object->fid);
    return status;
  }
  std::vector<fid*> x_fids;
};

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

int Libfabric::try_endpoints(const std::function<void()>& look) const {
  fi_info* const hints = x_dupinfo(nullptr);
  if (!hints) return -FI_ENOMEM;
  hints->fabric_attr->prov_name = strdup(kProvider);
  hints->mode = FI_CONTEXT;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  fi_info* list = nullptr;
  int status = x_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &list);
  x_freeinfo(hints);
  for (fi_info* info = list; info && !status; info = info->next) {
    if (std::strcmp(info->fabric_attr->prov_name, kProvider) != 0) continue;
    Fids fids;
    status = fids.enable_endpoint(x_fabric, *info);
    if (!status) look();
  }
  if (list) x_freeinfo(list);
  return status;
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
