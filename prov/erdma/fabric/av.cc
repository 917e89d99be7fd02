#include "fabric/av.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "fabric/domain.h"
#include "fabric/eq.h"
#include "fabric/host_range.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

using util::SocketAddress;

/// True if the table has fi_av_set_user_id(3), which libfabric has since 1.20.
template <typename Ops>
constexpr bool kTakesUserIds = requires(Ops& ops) {
  ops.set_user_id;
};

int av_insertsym(fid_av* fid, const char* node, size_t nodes, const char* service, size_t services,
                 fi_addr_t* fi_addr, uint64_t flags, void* context) noexcept {
  return abi_call([&] {
    AddressVector& av = AddressVector::from(fid);
    if (const int rc = av.check_insert(flags, context)) return rc;
    if (!nodes || !services) return av.insert(nullptr, 0, fi_addr, flags, context);
    util::Result<HostRange> range = HostRange::resolve(av.family(), node, nodes, service, services);
    return range ? av.insert_range(*range, fi_addr, flags, context) : range.error();
  });
}

int av_insertsvc(fid_av* fid, const char* node, const char* service, fi_addr_t* fi_addr,
                 uint64_t flags, void* context) noexcept {
  if (service) return av_insertsym(fid, node, 1, service, 1, fi_addr, flags, context);
  return abi_call([&] {
    AddressVector& av = AddressVector::from(fid);
    if (const int rc = av.check_insert(flags, context)) return rc;
    util::Result<HostRange> range = HostRange::resolve_uri(av.family(), node);
    return range ? av.insert_range(*range, fi_addr, flags, context) : range.error();
  });
}

int av_remove(fid_av* av, fi_addr_t* fi_addr, size_t count, uint64_t flags) noexcept {
  return flags ? -FI_EINVAL : AddressVector::from(av).remove(fi_addr, count);
}

const char* av_straddr(fid_av*, const void* address, char* buffer, size_t* length) noexcept try {
  if (!address || !length) return nullptr;
  sa_family_t family = AF_UNSPEC;
  std::memcpy(&family, address, sizeof(family));
  const std::string uri =
      to_uri(SocketAddress::from_sockaddr(address, SocketAddress::size_of(family)));
  if (uri.empty()) return nullptr;
  if (buffer && *length) std::snprintf(buffer, *length, "%s", uri.c_str());
  *length = uri.size() + 1;
  return buffer;
} catch (...) {
  return nullptr;
}

fi_ops_av g_av_ops = [] {
  auto ops = refusing<fi_ops_av>();
  ops.insert = entry<&AddressVector::insert>;
  ops.insertsvc = av_insertsvc;
  ops.insertsym = av_insertsym;
  ops.remove = av_remove;
  ops.lookup = entry<&AddressVector::lookup>;
  ops.straddr = av_straddr;
  [](auto& table) {
    if constexpr (kTakesUserIds<std::remove_reference_t<decltype(table)>>)
      table.set_user_id = entry<&AddressVector::set_user_id>;
  }(ops);
  return ops;
}();

int check_attr(const fi_av_attr& attr) noexcept {
  if (attr.type != FI_AV_UNSPEC && attr.type != FI_AV_MAP && attr.type != FI_AV_TABLE)
    return -FI_EINVAL;
  if (attr.rx_ctx_bits != 0) {
    ERDMA_WARN(AV, "there are no scalable endpoints: rx_ctx_bits must be 0\n");
    return -FI_EINVAL;
  }
  if (attr.name) {
    ERDMA_WARN(AV, "named (shared) address vectors are not supported\n");
    return -FI_ENOSYS;
  }
  // FI_READ is refused: it applies to named AVs only. With FI_AV_USER_ID the source of each message
  // is unknown until the application sets an id.
  constexpr uint64_t kUserIds = kTakesUserIds<fi_ops_av> ? FI_AV_USER_ID : 0;
  return attr.flags & ~(FI_EVENT | FI_SYMMETRIC | kUserIds) ? -FI_EINVAL : 0;
}

}  // namespace

AddressVector::AddressVector(AvParent parent, uint64_t flags, void* context)
    : FidObject(FI_CLASS_AV, context, parent.children),
      x_parent(std::move(parent)),
      x_flags(flags),
      x_table(x_parent.family, x_parent.canonical) {
  ops = &g_av_ops;
}

AddressVector::~AddressVector() {
  if (x_events) x_events->unbound();
}

uint64_t AddressVector::fi_addr_of(const SocketAddress& canonical) const noexcept {
  const uint64_t index = x_table.find(canonical);
  if (!(x_flags & FI_AV_USER_ID) && x_user_ids.empty()) return index;
  const auto found = x_user_ids.find(index);
  if (found != x_user_ids.end()) return found->second;
  return x_flags & FI_AV_USER_ID ? FI_ADDR_NOTAVAIL : index;
}

int AddressVector::check_insert(uint64_t flags, const void* context) const noexcept {
#ifdef FI_AUTH_KEY
  if (flags & FI_AUTH_KEY) return -FI_EOPNOTSUPP;
#endif
  if (flags & ~(FI_MORE | FI_SYNC_ERR | FI_AV_USER_ID)) return -FI_EBADFLAGS;
  // An AV opened with FI_AV_USER_ID gets its ids from fi_av_set_user_id(3).
  if ((flags & FI_AV_USER_ID) && (x_flags & FI_AV_USER_ID)) return -FI_EINVAL;
  if ((flags & FI_SYNC_ERR) && (x_flags & FI_EVENT)) return -FI_EBADFLAGS;
  return (flags & FI_SYNC_ERR) && !context ? -FI_EINVAL : 0;
}

int AddressVector::insert(const void* addresses, size_t count, fi_addr_t* fi_addr, uint64_t flags,
                          void* context) noexcept {
  if (const int rc = check_insert(flags, context)) return rc;
  if (count > INT_MAX || (count && !addresses)) return -FI_EINVAL;
  const size_t stride = SocketAddress::size_of(family());
  const auto address_at = [=](size_t i) {
    return SocketAddress::from_sockaddr(static_cast<const char*>(addresses) + i * stride, stride);
  };
  return insert_each(count, address_at, fi_addr, flags, context);
}

int AddressVector::insert_range(const HostRange& range, fi_addr_t* fi_addr, uint64_t flags,
                                void* context) noexcept {
  const auto address_at = [&](size_t i) { return range.at(i); };
  return insert_each(range.size(), address_at, fi_addr, flags, context);
}

/// Returns the number of inserted addresses, or 0 if an event reports it.
template <typename AddressAt>
int AddressVector::insert_each(size_t count, AddressAt&& address_at, fi_addr_t* fi_addr,
                               uint64_t flags, void* context) noexcept {
  if ((flags & FI_AV_USER_ID) && count && !fi_addr) return -FI_EINVAL;
  util::Guard guard(x_parent.lock);
  if ((x_flags & FI_EVENT) && !x_events) return -FI_ENOEQ;
  int* const status = flags & FI_SYNC_ERR ? static_cast<int*>(context) : nullptr;
  int inserted = 0;
  for (size_t i = 0; i < count; ++i) {
    const int64_t index = insert_one(address_at(i), flags & FI_AV_USER_ID ? &fi_addr[i] : nullptr);
    const int error = index < 0 ? static_cast<int>(-index) : 0;
    if (fi_addr) fi_addr[i] = error ? FI_ADDR_NOTAVAIL : static_cast<fi_addr_t>(index);
    if (status) status[i] = error;
    if (!error) {
      ++inserted;
    } else if (x_events) {
      fi_eq_err_entry entry{};
      entry.fid = &fid;
      entry.context = context;
      entry.data = i;
      entry.err = error;
      x_events->post_error(entry);
    }
  }
  if (!x_events) return inserted;
  x_events->post(FI_AV_COMPLETE, {&fid, context, static_cast<uint64_t>(inserted)});
  return 0;
}

int64_t AddressVector::insert_one(const SocketAddress& address, const fi_addr_t* user_id) noexcept {
  if (address.set() && (address.wildcard() || address.port() == 0)) return -FI_EADDRNOTAVAIL;
  const int64_t index = x_table.insert(address);
  if (index < 0) return index;
  if (user_id && !keep_user_id(static_cast<uint64_t>(index), *user_id)) {
    x_table.remove(static_cast<uint64_t>(index));
    return -FI_ENOMEM;
  }
  tell(static_cast<uint64_t>(index));
  return index;
}

bool AddressVector::keep_user_id(uint64_t index, fi_addr_t user_id) noexcept try {
  x_user_ids[index] = user_id;
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void AddressVector::tell(uint64_t index) noexcept {
  if (x_listeners.empty()) return;
  const SocketAddress canonical = x_table.canonical(index);
  for (AvListener* listener : x_listeners) listener->on_av_insert(index, canonical);
}

/// fi_av_set_user_id(3). -FI_EINVAL: the AV was opened without FI_AV_USER_ID, or `fi_addr` is not
/// in it.
int AddressVector::set_user_id(fi_addr_t fi_addr, fi_addr_t user_id, uint64_t flags) noexcept {
  if (flags) return -FI_EBADFLAGS;
  util::Guard guard(x_parent.lock);
  if (!(x_flags & FI_AV_USER_ID) || !x_table.contains(fi_addr)) return -FI_EINVAL;
  if (!keep_user_id(fi_addr, user_id)) return -FI_ENOMEM;
  tell(fi_addr);
  return 0;
}

/// Removes all of the given addresses that are in the AV. -FI_EINVAL: some were not.
int AddressVector::remove(const fi_addr_t* fi_addr, size_t count) noexcept {
  if (count && !fi_addr) return -FI_EINVAL;
  util::Guard guard(x_parent.lock);
  int rc = 0;
  for (size_t i = 0; i < count; ++i) {
    const SocketAddress canonical = x_table.canonical(fi_addr[i]);
    if (!x_table.remove(fi_addr[i])) {
      rc = -FI_EINVAL;
      continue;
    }
    x_user_ids.erase(fi_addr[i]);
    for (AvListener* listener : x_listeners) listener->on_av_remove(fi_addr[i], canonical);
  }
  return rc;
}

int AddressVector::lookup(fi_addr_t fi_addr, void* address, size_t* length) noexcept {
  if (!length || (!address && *length)) return -FI_EINVAL;
  util::Guard guard(x_parent.lock);
  const SocketAddress found = x_table.inserted(fi_addr);
  if (!found.set()) return -FI_EINVAL;
  if (address) std::memcpy(address, found.data(), std::min(*length, found.size()));
  *length = found.size();
  return 0;
}

int AddressVector::bind(fid_t queue, uint64_t flags) noexcept {
  if (!queue || queue->fclass != FI_CLASS_EQ || flags || !(x_flags & FI_EVENT)) return -FI_EINVAL;
  util::Guard guard(x_parent.lock);
  if (x_events) return -FI_EINVAL;
  x_events = &EventQueue::from(queue);
  x_events->bound();
  return 0;
}

int AddressVector::close() noexcept {
  if (const util::Guard guard(x_parent.lock); !x_listeners.empty()) return -FI_EBUSY;
  delete this;
  return 0;
}

int open_av(fid_domain* fid, fi_av_attr* attr, fid_av** av, void* context) noexcept {
  return abi_call([&] {
    Domain& domain = Domain::from(fid);
    if (!attr || !av) return -FI_EINVAL;
    if (const int rc = check_attr(*attr)) return rc;
    AvParent parent{domain.lock(), domain.own_address().family(),
                    [&domain](const SocketAddress& address) { return domain.canonical(address); },
                    &domain.children()};
    *av = new AddressVector(std::move(parent), attr->flags, context);
    if (attr->type == FI_AV_UNSPEC) attr->type = FI_AV_TABLE;
    return 0;
  });
}

}  // namespace erdma::fabric
