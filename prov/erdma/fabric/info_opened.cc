#include "fabric/info_opened.h"

#include <string>
#include <utility>

#include <rdma/fi_errno.h>

#include "fabric/domain.h"
#include "fabric/fabric.h"
#include "fabric/info_offer.h"
#include "fabric/info_refusal.h"

namespace erdma::fabric {
namespace {

/// Not so are objects of other providers, of libfabric's hooks around this one, and of the parent
/// of a forked child. Nothing is read of `object`, which may have been closed since an earlier
/// answer named it.
template <typename T, typename Fid>
bool is_open(OpenObjects<T>& all, const Fid* object) noexcept {
  return all.first([&](const T& open) { return &open == object; });
}

/// Clients that are refused an object ask again without it (Open MPI 6), so this is kept back.
int refuse(const std::string& reason) {
  if (!keep_back(reason)) ERDMA_REFUSE("%s", reason.c_str());
  return -FI_ENODATA;
}

int refuse_foreign(const std::string& attribute) {
  return refuse("hints ask " + attribute + ", which is no open object of this provider");
}

}  // namespace

int find_opened(const fi_info* hints, Opened& opened) {
  fid_fabric* const fabric = hints && hints->fabric_attr ? hints->fabric_attr->fabric : nullptr;
  fid_domain* const domain = hints && hints->domain_attr ? hints->domain_attr->domain : nullptr;
  if (fabric && !is_open(g_open_fabrics, fabric)) return refuse_foreign("fabric_attr->fabric");
  if (domain && !is_open(g_open_domains, domain)) return refuse_foreign("domain_attr->domain");
  opened.fabric = fabric;
  opened.domain = domain ? &Domain::from(domain) : nullptr;
  if (!domain) return 0;
  fid_fabric* const parent = &opened.domain->fabric();
  if (fabric && fabric != parent)
    return refuse("hints ask domain_attr->domain, which is not a domain of fabric_attr->fabric");
  opened.fabric = parent;
  return 0;
}

void Opened::choose_source(InfoAddresses& asked) const noexcept {
  if (!domain || (asked.source.set() && !asked.source.wildcard())) return;
  const util::SocketAddress& own = domain->own_address();
  if (asked.family != AF_UNSPEC && asked.family != own.family()) return;
  const uint16_t port = asked.source.set() ? asked.source.port() : 0;
  asked.source = own;
  asked.source.set_port(port);
  asked.family = own.family();
}

/// Where the hints leave an object open, the answer names the one that was opened first
/// (fi_fabric(3), fi_domain(3)). A domain that lacks something is none for this answer.
void Opened::name_objects(fi_info& info) const noexcept {
  fid_fabric* const parent =
      fabric ? fabric : g_open_fabrics.first([](const Fabric&) { return true; });
  const auto fits = [&](Domain& open) {
    return &open.fabric() == parent && (&open == domain || (!domain && !open.lacks_for(info)));
  };
  info.fabric_attr->fabric = parent;
  info.domain_attr->domain = g_open_domains.first(fits);
}

int Opened::restrict(fi_info*& list) const {
  InfoPtr all(std::exchange(list, nullptr));
  fi_info** end = &list;
  const char* lack = "";
  while (all) {
    InfoPtr info = std::move(all);
    all.reset(std::exchange(info->next, nullptr));
    const char* const lacks = domain ? domain->lacks_for(*info) : nullptr;
    if (lacks) {
      lack = lacks;
      continue;
    }
    name_objects(*info);
    *end = info.release();
    end = &(*end)->next;
  }
  return list ? 0 : refuse(std::string("hints ask domain_attr->domain, which lacks ") + lack);
}

}  // namespace erdma::fabric
