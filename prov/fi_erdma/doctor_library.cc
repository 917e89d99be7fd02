#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "fi_erdma/doctor.h"
#include "fi_erdma/libfabric.h"
#include "fi_erdma/objects.h"
#include "fi_erdma/traffic.h"
#include "fi_erdma/trial.h"
#include "fi_erdma/variables.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

/// Returns what check_library() needs.
Json look_around() {
  std::string fault;
  const auto library = Libfabric::open(fault);
  if (!library) return {{"no_libfabric", fault}};
  Json json = {{"version", library->version()}, {"path", library->path()}};
  json["devices"] = Json::array();
  const Info hints = new_info();
  hints->mode = FI_CONTEXT;
  hints->fabric_attr->prov_name = strdup("erdma");
  fi_info* found = nullptr;
  const int status = library->getinfo(FI_VERSION(1, 9), hints.get(), &found);
  const Info list(found);
  if (status) json["error"] = library->error_text(status);
  for (const fi_info* info = found; info; info = info->next)
    json["devices"].push_back(info->domain_attr->name);
  if (list) json["provider_version"] = version_text(list->fabric_attr->prov_version);
  json["provider"] = library->provider_path();
  if (json["provider"] == "") json["provider_fault"] = library->provider_fault();
  json["unknown"] = unknown_variables(library->variables());
  return json;
}

void check_variables(Report& report, const Json& unknown) {
  for (const Json& one : unknown)
    report.broken("E105", unknown_text(one), {"man 7 fi_erdma lists them"});
}

/// Empty if the trial could not read its own page.
std::optional<uint64_t> counted(const Outcome& outcome, const char* name) {
  if (!outcome.result.contains("counters")) return std::nullopt;
  const Json& counters = outcome.result["counters"];
  if (!counters.contains(name)) return std::nullopt;
  return counters[name].get<uint64_t>();
}

/// Reports the path that the bytes of a trial through a NIC took.
void check_nic_way(Report& report, const std::string& name, const Outcome& outcome) {
  const std::string device = place_text(name, outcome.result);
  const auto copied = counted(outcome, "nic_copied_bytes");
  const auto read = counted(outcome, "nic_read_bytes");
  const auto written = counted(outcome, "nic_write_bytes");
  const std::string speed = speed_text(outcome);
  // How memory is registered: kept or for each transfer, and how it is protected from a fork.
  const std::string how = outcome.result.value("other_hosts", std::string());
  const std::string end = speed + (how.empty() ? "" : "; " + how);
  if (!copied || !read || !written)
    report.ok(device + ": messages and RMA arrive" + speed + "; which way is not known: " +
              outcome.result.value("page", std::string("the page does not count it")));
  else if (*copied)
    report.slower(
        "W203", device + ": messages and RMA arrive, but long ones are copied" + end,
        with_said({"a lower layer must permit zero copy: see the line of erdma"}, outcome));
  else if (*read)
    report.ok(device + ": messages, zero copy and RDMA READ arrive" + end);
  else if (*written)
    report.ok(device + ": messages, zero copy and RMA arrive, all by RDMA WRITE" + end);
  else
    report.ok(device + ": messages and RMA arrive, in packets alone" + end);
}

/// Reports whether messages arrive in memory that was used, and maybe registered, before a fork.
void check_fork(Report& report, const std::string& where, const Outcome& outcome) {
  const std::string trouble = text_of(outcome.result.value("fork", Json::object()), "error");
  if (trouble.empty()) return report.ok(where + ": messages arrive after a fork");
  report.broken("E217", where + ": messages fail after a fork: " + trouble,
                with_said({variable("FI_ERDMA_FORK") == "unsafe"
                               ? "FI_ERDMA_FORK=unsafe is for processes that never fork: unset it"
                               : "FI_ERDMA_MR_CACHE=off keeps nothing registered"},
                          outcome));
}

/// Reports whether the NIC notices that memory which it may have registered is another one now.
void check_renewed_memory(Report& report, const std::string& device, const Outcome& outcome) {
  const std::string trouble = text_of(outcome.result.value("renewed", Json::object()), "error");
  if (trouble.empty())
    return report.ok(device +
                     ": fresh bytes arrive from memory that is used again, and from other "
                     "memory at its address");
  report.broken("E218",
                device + ": messages from memory that was mapped anew are wrong: " + trouble,
                with_said({"FI_ERDMA_MR_CACHE=off keeps nothing registered"}, outcome));
}

/// Returns whether messages arrive.
bool check_host_bytes(Report& report, double longest_seconds) {
  const Outcome outcome = try_apart(
      telling({{"FI_PROVIDER", "erdma"}, {"FI_ERDMA_DEVICE", "shm"}, {"FI_ERDMA_SHM", ""}}),
      [&] { return exchange_bytes(longest_seconds); });
  const std::string trouble = trouble_of(outcome);
  if (!trouble.empty()) {
    report.broken("E201", "messages inside this host fail: " + trouble, outcome.said);
    return false;
  }
  report.ok("inside this host: messages and RMA arrive" + speed_text(outcome) + "; " +
            outcome.result.value(
                "this_host", "which way is not known: " +
                                 outcome.result.value("page", std::string("nothing is shown"))));
  const std::string renewed = text_of(outcome.result.value("renewed", Json::object()), "error");
  if (!renewed.empty())
    report.broken("E201",
                  "messages inside this host fail from memory that was mapped anew: " + renewed,
                  outcome.said);
  check_fork(report, "inside this host", outcome);
  return true;
}

void check_nic_bytes(Report& report, const std::string& device, double longest_seconds) {
  const Outcome outcome = try_apart(
      telling({{"FI_PROVIDER", "erdma"}, {"FI_ERDMA_DEVICE", device}, {"FI_ERDMA_SHM", "off"}}),
      [&] { return exchange_bytes(longest_seconds); });
  const std::string trouble = trouble_of(outcome);
  if (!trouble.empty())
    return report.broken("E202", device + ": messages fail: " + trouble, outcome.said);
  check_nic_way(report, device, outcome);
  check_renewed_memory(report, device, outcome);
  check_fork(report, device, outcome);
}

void check_client(Report& report, const Client& client) {
  const std::string name = std::string(client.name) + " " + client.part;
  Variables variables = telling({{"FI_PROVIDER", "erdma"}});
  variables.emplace_back("FI_ERDMA_LOG", "info");  // then refusals of hints are told at once
  const Outcome outcome = try_apart(variables, [&] { return ask_as(client); });
  const std::string trouble = trouble_of(outcome);
  const std::string device = outcome.result.value("device", std::string());
  if (trouble.empty() && client.pci && !outcome.result.value("pci", false))
    report.ok(name + ": not on " + device + ", which has no PCI address");
  else if (trouble.empty())
    report.ok(name + ": fi_getinfo offers " + device +
              (outcome.result.value("gpu", false) ? ", with GPU memory" : ""));
  else if (outcome.fault.empty() && outcome.result.value("too_old", false))
    report.ok(name + ": it needs a later libfabric");
  else if (client.gpu_alone)
    report.slower("W604", name + ": fi_getinfo offers no GPU memory: " + trouble, outcome.said);
  else
    report.broken("E301", name + ": fi_getinfo offers nothing: " + trouble, outcome.said);
}

void report_no_offer(Report& report, const std::string& error, const Outcome& outcome) {
  std::string wanted = variable("FI_PROVIDER");
  std::ranges::replace(wanted, ';', ',');  // separates layered providers
  if (leaves_out(wanted, "erdma"))
    return report.broken("E103", "FI_PROVIDER=" + variable("FI_PROVIDER") + " excludes erdma",
                         {"export FI_PROVIDER=erdma"});
  std::vector<std::string> more;
  if (variable("FI_ERDMA_DEVICE") == "shm" && variable("FI_ERDMA_SHM") == "off")
    more = {"FI_ERDMA_DEVICE=shm excludes NICs, and FI_ERDMA_SHM=off shared memory: unset one"};
  report.broken("E104", "erdma offers nothing: " + error, with_said(more, outcome));
}

}  // namespace

Offer check_library(Report& report) {
  report.begin("libfabric");
  const Outcome outcome = try_apart(telling({}), look_around);
  const Json& seen = outcome.result;
  if (!outcome.fault.empty()) {
    report.broken("E104", "libfabric can't be asked: " + outcome.fault, outcome.said);
    return {};
  }
  if (seen.contains("no_libfabric")) {
    report.broken("E101", "libfabric can't be loaded: " + seen["no_libfabric"].get<std::string>(),
                  {"install it, or put its folder into LD_LIBRARY_PATH"});
    return {};
  }
  report.ok("libfabric " + seen["version"].get<std::string>() + "  " +
            seen["path"].get<std::string>());
  const std::string provider = seen["provider"];
  if (provider.empty()) {
    const char* const path = getenv("FI_PROVIDER_PATH");
    const std::string fault = seen.value("provider_fault", std::string());
    report.broken(
        "E102", "libfabric did not load liberdma-fi.so",
        {!fault.empty() ? "the loader refuses it: " + fault
         : path ? std::string("FI_PROVIDER_PATH is ") + path + ": libfabric searches only there"
                : "install it, or put its folder into FI_PROVIDER_PATH"});
    return {};
  }
  // Without an offer the version is not known.
  const std::string version = seen.value("provider_version", std::string());
  report.ok("provider" + (version.empty() ? "" : " " + version) + "  " + provider);
  check_variables(report, seen["unknown"]);
  if (seen.contains("error")) report_no_offer(report, seen["error"].get<std::string>(), outcome);
  Offer offer{!seen.contains("error"), {}};
  for (const Json& device : seen["devices"])
    if (device != "shm") offer.devices.push_back(device);
  return offer;
}

std::string check_bytes(Report& report, const Request& request, const Offer& offer) {
  constexpr double kLongest = 20;  ///< seconds
  const double longest = std::min(request.peer.limit_s, kLongest);
  report.begin("bytes");
  std::string cost;
  if (is_switched_off("FI_ERDMA_SHM"))
    report.slower("W204", "FI_ERDMA_SHM=off: processes of this host use only the NIC",
                  {"unset FI_ERDMA_SHM"});
  else if (check_host_bytes(report, longest))
    cost = check_copies(report, longest);
  for (const std::string& device : offer.devices) check_nic_bytes(report, device, longest);
  return cost;
}

void check_clients(Report& report, const Request& request) {
  report.begin("applications");
  const auto names = request.clients.empty() ? client_names() : request.clients;
  for (const std::string& name : names) {
    for (const Client& client : kClients)
      if (name == client.name && (!client.gpu_alone || count_gpus() > 0))
        check_client(report, client);
    if (name == "openmpi" && !request.clients.empty()) check_openmpi(report);
  }
}

}  // namespace fi_erdma
