#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "fabric/address_table.h"
#include "fabric/fid_ops.h"
#include "protocol/address_book.h"
#include "util/domain_lock.h"
#include "util/socket_address.h"

namespace erdma::fabric {

class HostRange;
class Domain;
class EventQueue;

/// An endpoint bound to an AV, which caches entries of the AV. Called with the domain lock held,
/// after the AV changed.
class AvListener {
 public:
  virtual void on_av_insert(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept = 0;
  virtual void on_av_remove(uint64_t fi_addr, const util::SocketAddress& canonical) noexcept = 0;

 protected:
  ~AvListener() = default;
};

/// What an AV needs from its domain.
struct AvParent {
  util::DomainLock& lock;
  sa_family_t family;
  AddressTable::Canonical canonical;
  Children* children;
};

/// One address vector. A fi_addr_t is an index, both for FI_AV_TABLE and for FI_AV_MAP. Entry
/// points take the domain lock; callers of attach(), detach() and the AddressBook hold it.
/// Invariant: the AV outlives its listeners; fi_close returns -FI_EBUSY while it has any.
class AddressVector final : public FidObject<AddressVector, fid_av>, public protocol::AddressBook {
 public:
  AddressVector(AvParent parent, uint64_t flags, void* context);
  ~AddressVector();

  /// True if the AV takes this lock, which means that it belongs to the lock's domain.
  bool takes(const util::DomainLock& lock) const noexcept { return &lock == &x_parent.lock; }
  void attach(AvListener& listener) { x_listeners.push_back(&listener); }
  void detach(AvListener& listener) noexcept { std::erase(x_listeners, &listener); }

  util::SocketAddress address_of(uint64_t fi_addr) const noexcept override {
    return x_table.canonical(fi_addr);
  }
  uint64_t fi_addr_of(const util::SocketAddress& canonical) const noexcept override;

  // The calls of fi_av(3).
  int insert(const void* addresses, size_t count, fi_addr_t* fi_addr, uint64_t flags,
             void* context) noexcept;
  int insert_range(const HostRange& range, fi_addr_t* fi_addr, uint64_t flags,
                   void* context) noexcept;
  int remove(const fi_addr_t* fi_addr, size_t count) noexcept;
  int lookup(fi_addr_t fi_addr, void* address, size_t* length) noexcept;
  int set_user_id(fi_addr_t fi_addr, fi_addr_t user_id, uint64_t flags) noexcept;
  int bind(fid_t queue, uint64_t flags) noexcept;
  int close() noexcept;

  int check_insert(uint64_t flags, const void* context) const noexcept;
  sa_family_t family() const noexcept { return x_table.family(); }

 private:
  template <typename AddressAt>
  int insert_each(size_t count, AddressAt&& address_at, fi_addr_t* fi_addr, uint64_t flags,
                  void* context) noexcept;
  int64_t insert_one(const util::SocketAddress& address, const fi_addr_t* user_id) noexcept;
  bool keep_user_id(uint64_t index, fi_addr_t user_id) noexcept;
  void tell(uint64_t index) noexcept;

  AvParent x_parent;
  const uint64_t x_flags;
  AddressTable x_table;
  std::unordered_map<uint64_t, fi_addr_t> x_user_ids;  ///< FI_AV_USER_ID: reported as the source
  std::vector<AvListener*> x_listeners;
  EventQueue* x_events = nullptr;
};

/// fi_av_open(3). Replaces the type FI_AV_UNSPEC in `attr` by the type of the new AV.
int open_av(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context) noexcept;

}  // namespace erdma::fabric
