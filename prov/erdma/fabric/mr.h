#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "util/lock.h"

namespace erdma::fabric {

class Domain;
class MemoryRegions;

/// One registered region of host memory. Owned by its MemoryRegions until fi_close.
class MemoryRegion final : public fid_mr {
 public:
  static constexpr size_t kMaxIov = 4;
  static MemoryRegion& from(fid_mr* mr) noexcept { return static_cast<MemoryRegion&>(*mr); }
  static MemoryRegion& from(fid_t fid) noexcept { return from(reinterpret_cast<fid_mr*>(fid)); }

  MemoryRegion(MemoryRegions& owner, const fi_mr_attr& attr, uint64_t chosen) noexcept;

  uint64_t access() const noexcept { return x_access; }
  size_t iov_count() const noexcept { return x_iov_count; }
  const iovec* iov() const noexcept { return x_iov.data(); }
  int close() noexcept;

 private:
  MemoryRegions& x_owner;
  const uint64_t x_access;
  const size_t x_iov_count;
  std::array<iovec, kMaxIov> x_iov{};
};

/// The memory regions of one domain, by key. A member of the domain; takes the domain lock itself.
/// Provider keys come from the kernel's random numbers: knowing one tells nothing of another.
class MemoryRegions {
 public:
  /// `opened` and `closed` are called for each region.
  MemoryRegions(util::OptionalLock& lock, int mr_mode, uint32_t api_version,
                std::function<void()> opened, std::function<void()> closed);
  MemoryRegions(const MemoryRegions&) = delete;
  MemoryRegions& operator=(const MemoryRegions&) = delete;
  ~MemoryRegions();

  int open(const fi_mr_attr* attr, uint64_t flags, fid_mr** mr);
  void close(MemoryRegion& region) noexcept;
  /// Null if there is none. The caller holds the domain lock.
  MemoryRegion* find(uint64_t key) noexcept;

 private:
  int check(const fi_mr_attr& attr, uint64_t flags) const noexcept;
  int choose_key(uint64_t& key) noexcept;
  int random_key(uint64_t& key) noexcept;

  util::OptionalLock& x_lock;
  const bool x_provider_keys;
  // The application's fi_mr_attr is that of the API version it asked for.
  const bool x_attr_has_auth_key;
  const bool x_attr_has_interface;
  const std::function<void()> x_opened;
  const std::function<void()> x_closed;
  std::unordered_map<uint64_t, MemoryRegion*> x_regions;
  std::array<uint64_t, 32> x_random{};
  size_t x_random_left = 0;
};

/// fi_mr_regattr(3).
int reg_mr(Domain& domain, const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) noexcept;

/// For fid_domain::mr.
extern fi_ops_mr g_mr_ops;

}  // namespace erdma::fabric
