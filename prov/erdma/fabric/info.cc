#include "fabric/info.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include <rdma/fi_errno.h>

#include "fabric/device.h"
#include "fabric/fid_ops.h"
#include "fabric/info_address.h"
#include "fabric/info_offer.h"
#include "fabric/info_opened.h"
#include "fabric/info_refusal.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

std::string reasons(const std::vector<DeviceReport>& reports) {
  if (reports.empty()) return "this host has no RDMA device";
  std::string text;
  for (const DeviceReport& report : reports)
    text += (text.empty() ? "" : "; ") + report.device.name + ": " + report.reason;
  return text;
}

const char* hinted_domain(const fi_info* hints) noexcept {
  return hints && hints->domain_attr ? hints->domain_attr->name : nullptr;
}

bool hints_have_key(const fi_info& hints) noexcept {
  return (hints.domain_attr && hints.domain_attr->auth_key_size) ||
         (hints.ep_attr && hints.ep_attr->auth_key_size);
}

bool wants_shm(const Settings& settings) noexcept {
  return std::ranges::find(settings.devices, kShmDevice) != settings.devices.end();
}

bool shm_alone(const Settings& settings) noexcept {
  return settings.devices.size() == 1 && wants_shm(settings);
}

/// Listing devices opens them, so no device is listed if the user wants none.
std::vector<DeviceReport> survey(const Host& host) {
  if (shm_alone(host.settings)) return {};
  return survey_devices(host.devices(), host.settings.devices);
}

/// One notice about devices per process: applications call fi_getinfo repeatedly.
std::atomic_flag g_said;

void warn_of_named_once(const std::string& text) {
  if (!g_said.test_and_set()) ERDMA_NOTICE(device, CORE, "%s", text.c_str());
}
void warn_of_none_once(const std::string& text) {
  if (!g_said.test_and_set()) ERDMA_NOTICE(no_device, CORE, "%s", text.c_str());
}

/// Returns 0, or -FI_ENODATA if FI_ERDMA_DEVICE names devices and none can be used. The user wants
/// these: neither another device nor shared memory replaces them, unless "shm" is among the names.
int check_named(const Host& host, const std::vector<DeviceReport>& reports, bool nic) {
  if (wants_shm(host.settings)) return 0;
  const std::string faults = faults_of_named(reports);
  if (faults.empty()) return 0;
  warn_of_named_once(
      nic ? faults
          : faults + ". FI_ERDMA_DEVICE=shm is for jobs on this host alone, without a NIC");
  return nic ? 0 : -FI_ENODATA;
}

/// Returns 0 if single-host operation may be offered, else -FI_ENODATA. Logs why each NIC is not
/// used, unless the user asked for "shm".
int permit_single_host(const Host& host, const fi_info* hints,
                       const std::vector<DeviceReport>& reports) {
  if (shm_alone(host.settings) && host.settings.shm == Switch::off) {
    ERDMA_REFUSE("FI_ERDMA_DEVICE=shm and FI_ERDMA_SHM=off contradict each other: unset one");
    return -FI_ENODATA;
  }
  if (host.settings.shm == Switch::off) {
    ERDMA_REFUSE("no NIC to use (%s), and FI_ERDMA_SHM=off", reasons(reports).c_str());
    return -FI_ENODATA;
  }
  if (wants_shm(host.settings)) return 0;
  const char* prov_name = hints && hints->fabric_attr ? hints->fabric_attr->prov_name : nullptr;
  if (!asked_by_name(provider_filter(), prov_name)) {
    ERDMA_INFO(CORE, "no NIC to use (%s), and erdma was not asked for by name\n",
               reasons(reports).c_str());
    return -FI_ENODATA;
  }
  warn_of_none_once(
      "no NIC to use (" + reasons(reports) +
      "): only processes of this host can be reached. FI_ERDMA_DEVICE=shm asks for this and "
      "silences this line");
  return 0;
}

void put_address(const util::SocketAddress& address, void*& member, size_t& length) {
  if (!address.set()) return;
  member = std::malloc(address.size());
  if (!member) throw std::bad_alloc();
  std::memcpy(member, address.data(), address.size());
  length = address.size();
}

/// The answer for one device: the offer with the hints applied.
InfoPtr make_answer(const InfoQuery& query, const Host& host, const util::SocketAddress& source,
                    const util::SocketAddress& destination) {
  InfoPtr info = make_offer(host.settings, query.hints ? query.hints->caps : 0);
  apply_hints(*info, query.version, query.hints);
  info->addr_format = source.family() == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
  put_address(source, info->src_addr, info->src_addrlen);
  put_address(destination, info->dest_addr, info->dest_addrlen);
  return info;
}

int answer_single_host(const InfoQuery& query, const Host& host, const InfoAddresses& asked,
                       fi_info** result) {
  const char* domain = hinted_domain(query.hints);
  if (domain && strcmp(domain, kShmDomainName) != 0) {
    ERDMA_REFUSE("hints ask domain_attr->name %s, offered is %s", domain, kShmDomainName);
    return -FI_ENODATA;
  }
  if (query.hints && hints_have_key(*query.hints)) {
    ERDMA_REFUSE("hints ask auth_key: within a host the user decides who may connect");
    return -FI_ENODATA;
  }
  const util::SocketAddress source = source_on_host(host.local, asked);
  if (!source.set()) return -FI_ENODATA;
  InfoPtr info = make_answer(query, host, source, asked.destination);
  describe_shm_device(*info, source);
  *result = info.release();
  return 0;
}

void put(InfoPtr& list, InfoPtr info, bool first) noexcept {
  if (first || !list) {
    info->next = list.release();
    list = std::move(info);
    return;
  }
  fi_info* last = list.get();
  while (last->next) last = last->next;
  last->next = info.release();
}

/// Logs why no NIC fits the hints, although one can be used. `domain` may be null.
void refuse_nics(const char* domain, const InfoAddresses& asked,
                 const std::vector<DeviceReport>& reports) {
  const auto named = std::ranges::find_if(
      reports, [&](const DeviceReport& report) { return domain && report.device.name == domain; });
  if (named != reports.end() && !named->usable) {
    ERDMA_REFUSE("hints ask domain_attr->name %s, which is not used: %s", domain,
                 named->reason.c_str());
    return;
  }
  const auto has_family = [&](const DeviceReport& report) {
    return report.usable && (!domain || report.device.name == domain) &&
           preferred_address(report.device.addresses, asked.family).set();
  };
  if ((!domain || named != reports.end()) && std::ranges::none_of(reports, has_family)) {
    ERDMA_REFUSE("hints or node ask for %s addresses, which %s lacks",
                 asked.family == AF_INET6 ? "IPv6" : "IPv4", domain ? domain : "every NIC");
    return;
  }
  ERDMA_REFUSE("no NIC has the domain name %s and the source address %s that were asked",
               domain ? domain : "(any)",
               asked.source.set() ? asked.source.host_string().c_str() : "(any)");
}

/// One info per NIC that fits the hints. The NIC on the route to the destination comes first.
int answer_nics(const InfoQuery& query, const Host& host, const InfoAddresses& asked,
                const std::vector<DeviceReport>& reports, fi_info** result) {
  const char* domain = hinted_domain(query.hints);
  const util::SocketAddress by_route = source_by_route(asked.destination);
  InfoPtr list;
  for (const DeviceReport& report : reports) {
    if (!report.usable) {
      ERDMA_INFO(CORE, "%s is not used: %s\n", report.device.name.c_str(), report.reason.c_str());
      continue;
    }
    if (domain && report.device.name != domain) continue;
    const util::SocketAddress source = source_on_nic(report.device.addresses, asked);
    if (!source.set()) continue;
    InfoPtr info = make_answer(query, host, source, asked.destination);
    describe_nic(*info, report.device, source);
    put(list, std::move(info), by_route.set() && source.same_host(by_route));
  }
  if (!list) refuse_nics(domain, asked, reports);
  *result = list.release();
  return *result ? 0 : -FI_ENODATA;
}

}  // namespace

int find_infos(const InfoQuery& query, const Host& host, fi_info** result) {
  const GetinfoCall call(query.flags);
  if (query.flags & FI_PEER) {
    ERDMA_REFUSE("FI_PEER is set: this provider does not share its objects with others");
    return -FI_ENODATA;
  }
  if (query.hints)
    if (int rc =
            check_hints(*make_offer(host.settings, query.hints->caps), query.version, *query.hints))
      return rc;
  Opened opened;
  if (int rc = find_opened(query.hints, opened)) return rc;
  const std::vector<DeviceReport> reports = survey(host);
  const bool nic = std::ranges::any_of(reports, &DeviceReport::usable);
  if (int rc = check_named(host, reports, nic)) return rc;
  if (!nic)
    if (int rc = permit_single_host(host, query.hints, reports)) return rc;
  InfoAddresses asked;
  if (int rc = resolve_addresses(query.node, query.service, query.flags, query.hints, asked))
    return rc;
  opened.choose_source(asked);
  int rc = nic ? answer_nics(query, host, asked, reports, result)
               : answer_single_host(query, host, asked, result);
  if (!rc) rc = opened.restrict(*result);
  if (!rc && query.hints) call.offers();
  return rc;
}

int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept {
  return abi_call([&] {
    const Host host{read_settings(), LocalAddresses::load(), transport::verbs::list_devices};
    return find_infos({version, node, service, flags, hints}, host, info);
  });
}

int check_info(uint32_t version, const fi_info& info) {
  const int rc = check_hints(*make_offer(read_settings(), info.caps), version, info);
  return rc == -FI_ENODATA ? -FI_EINVAL : rc;
}

}  // namespace erdma::fabric
