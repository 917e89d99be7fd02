#include <dlfcn.h>
#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#include "fi_erdma/doctor.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

constexpr int kTried = 64;  ///< objects of each kind
constexpr size_t kRegionBytes = 4096;

/// The functions of libibverbs that are loaded in this process, or replacements of a test. This
/// program is not linked to libibverbs.
struct Verbs {
  /// Whether all of them were found.
  bool look_up() {
    (void)dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
    return find(get_list, "ibv_get_device_list") && find(name_of, "ibv_get_device_name") &&
           find(open, "ibv_open_device") && find(query, "ibv_query_device") &&
           find(alloc_pd, "ibv_alloc_pd") && find(create_cq, "ibv_create_cq") &&
           find(create_qp, "ibv_create_qp") && find(destroy_qp, "ibv_destroy_qp") &&
           find(register_memory, "ibv_reg_mr") && find(deregister, "ibv_dereg_mr");
  }

  decltype(&::ibv_get_device_list) get_list;
  decltype(&::ibv_get_device_name) name_of;
  decltype(&::ibv_open_device) open;
  decltype(&::ibv_query_device) query;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  ibv_mr* (*register_memory)(ibv_pd*, void*, size_t, int);
  decltype(&::ibv_dereg_mr) deregister;

 private:
  template <typename Function>
  static bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  }
};

ibv_context* open_device(const Verbs& verbs, const std::string& name) {
  ibv_device** const list = verbs.get_list(nullptr);
  for (ibv_device** each = list; each && *each; ++each)
    if (name == verbs.name_of(*each)) return verbs.open(*each);
  errno = ENODEV;
  return nullptr;
}

/// Creates up to kTried objects and destroys them again.
template <typename Make, typename Destroy>
int how_many_of(const Make& make, const Destroy& destroy, int& error) {
  std::vector<decltype(make())> made;
  while (made.size() < kTried) {
    errno = 0;
    const auto one = make();
    error = errno ? errno : ENOMEM;
    if (!one) break;
    made.push_back(one);
  }
  for (auto* const one : made) destroy(one);
  return int(made.size());
}

Json try_objects(const std::string& device) {
  Verbs verbs;
  if (!verbs.look_up()) return {{"error", "there is no libibverbs.so.1"}};
  ibv_context* const context = open_device(verbs, device);
  ibv_device_attr limits{};
  ibv_pd* const domain = context ? verbs.alloc_pd(context) : nullptr;
  ibv_cq* const queue = domain ? verbs.create_cq(context, 16, nullptr, nullptr, 0) : nullptr;
  if (!queue || verbs.query(context, &limits)) return {{"error", std::strerror(errno)}};
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = queue;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {1, 1, 1, 1, 0};
  alignas(kRegionBytes) static char memory[kRegionBytes];
  int pair_error = 0, region_error = 0;
  const int pairs = how_many_of([&] { return verbs.create_qp(domain, &attributes); },
                                verbs.destroy_qp, pair_error);
  const auto make_region = [&] {
    return verbs.register_memory(domain, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
  };
  const int regions = how_many_of(make_region, verbs.deregister, region_error);
  return {{"pairs", pairs},
          {"pair_error", std::strerror(pair_error)},
          {"most_pairs", limits.max_qp},
          {"regions", regions},
          {"region_error", std::strerror(region_error)},
          {"most_regions", limits.max_mr}};
}

}  // namespace

void check_nic_objects(Report& report, const std::string& device) {
  const Outcome outcome = try_apart({}, [&] { return try_objects(device); });
  const std::string trouble = trouble_of(outcome);
  if (!trouble.empty())
    return report.ok(device + ": how many queue pairs it has left is not known: " + trouble);
  const Json& found = outcome.result;
  const int pairs = found.value("pairs", 0), regions = found.value("regions", 0);
  const int most_pairs = found.value("most_pairs", 0),
            most_regions = found.value("most_regions", 0);
  if (pairs < kTried)
    report.slower(
        "W504",
        fmt::format("{}: {} queue pairs are left of its {}, for all processes together: {}", device,
                    pairs, most_pairs, text_of(found, "pair_error")),
        {"lower FI_ERDMA_MAX_CONNECTIONS; rdma resource show qp tells which processes use them"});
  if (regions < kTried)
    report.slower("W505",
                  fmt::format("{}: {} regions of memory can be registered, of its {} for all "
                              "processes together: {}",
                              device, regions, most_regions, text_of(found, "region_error")),
                  {"rdma resource show mr tells which processes use them"});
  if (pairs == kTried && regions == kTried)
    report.ok(fmt::format("{}: {} queue pairs and regions can be made, of its {} and {}", device,
                          kTried, most_pairs, most_regions));
}

}  // namespace fi_erdma
