#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "fabric/fid_ops.h"
#include "fabric/mr_attr.h"
#include "fabric/progress.h"
#include "protocol/regions.h"
#include "transport/direct_source.h"
#include "util/clock.h"
#include "util/domain_lock.h"
#include "util/process_epoch.h"

namespace erdma::fabric {

class Counter;
class MemoryRegions;

/// Polls of an endpoint for what has arrived, before it or a region closes: more than enough for
/// the rings of peers in this host, and for the last packets of 2000 peers behind a NIC.
inline constexpr int kRestPolls = 64;

/// An endpoint, as the executor of peers' operations on regions. The caller holds the domain lock.
class RegionUser : public ProgressSource {
 public:
  /// Lets go of the region where only the report of an operation is left, and, if `by_force`, ends
  /// the connections that carry unfinished operations on it.
  virtual void abandon(const protocol::Region& region, bool by_force) noexcept = 0;
  /// Revokes direct access of peers. The region stays in use until they have answered, or until
  /// stop_waiting().
  virtual void revoke(uint64_t key) noexcept = 0;
  virtual void stop_waiting(uint64_t key, protocol::Await await) noexcept = 0;
  /// Attaches a counter that counts operations executed by this endpoint, so that a thread that
  /// waits for the counter drives the endpoint; until unwatch_counter().
  virtual void watch_counter(Counter& cntr) = 0;
  virtual void unwatch_counter(Counter& cntr) noexcept = 0;

 protected:
  ~RegionUser() = default;
};

/// One registered region of memory. Owned by its MemoryRegions until fi_close.
class MemoryRegion final : public FidObject<MemoryRegion, fid_mr>, public protocol::Region {
 public:
  MemoryRegion(MemoryRegions& owner, Children* siblings, const fi_mr_attr& attr,
               const iovec* memory, size_t pieces) noexcept;

  int bind(fid_t object, uint64_t flags);
  int control(int command, void* argument) noexcept;
  int close() noexcept;
  void accessed(uint64_t how) noexcept override;
  bool counts() const noexcept override { return x_reads || x_writes; }
  /// The counter of FI_REMOTE_READ or FI_REMOTE_WRITE; may be null.
  Counter*& counter(uint64_t event) noexcept {
    return event == FI_REMOTE_READ ? x_reads : x_writes;
  }
  /// For device memory: makes `keeper` keep every piece. A second call does nothing.
  void keep(transport::DeviceMemoryKeeper& keeper, const transport::Dmabuf* file);

 private:
  int raw_attr(struct fi_mr_raw_attr* attr) const noexcept;

  MemoryRegions& x_owner;
  Counter* x_reads = nullptr;
  Counter* x_writes = nullptr;
  std::array<std::unique_ptr<transport::KeptMemory>, transport::kMaxIov> x_kept;
};

/// The memory regions of one domain, by key. It is a member of the domain, and takes the domain
/// lock itself. Provider keys are random numbers of the kernel: they can't be guessed from each
/// other, and practically never recur. Regions with keys that the application chose are not
/// accessible to peers; among those that are registered for peers all the same each key is unique.
/// Invariant: once close() has returned 0, no operation of a peer touches the memory.
class MemoryRegions final : public protocol::Regions {
 public:
  /// `cuda`: regions may be device memory; null: they are host memory. `clock`: null for
  /// SystemClock.
  MemoryRegions(util::DomainLock& lock, int mr_mode, uint32_t api_version, Children* children,
                hmem::Cuda* cuda = nullptr, const util::Clock* clock = nullptr);
  MemoryRegions(const MemoryRegions&) = delete;
  MemoryRegions& operator=(const MemoryRegions&) = delete;
  ~MemoryRegions();

  /// To be called before the first open(). Without it peers access device memory by packets only.
  void register_device_memory_with(transport::RegionRegistrar& opener) noexcept {
    x_registrar = &opener;
  }

  /// Makes `keeper` keep the device memory of all regions, existing and future ones.
  void keep_device_memory_with(transport::DeviceMemoryKeeper& keeper);

  /// True if keys are the provider's, so that peers can access regions.
  bool provider_keys() const noexcept { return x_provider_keys; }
  int open(const fi_mr_attr* attr, uint64_t flags, fid_mr** mr);
  /// Waits for operations of peers on the region, until all have ended or none has ended for a few
  /// seconds. -FI_EBUSY: some have not. No new operation begins, and the application must close the
  /// region again.
  int close(MemoryRegion& region) noexcept;
  int bind(MemoryRegion& region, Counter& cntr, uint64_t flags);
  /// The region of a key, or null, also if only local regions (Name) have the key. The caller holds
  /// the domain lock.
  MemoryRegion* find(uint64_t key) noexcept;
  protocol::Region* region(uint64_t key) noexcept override {
    return x_provider_keys ? find(key) : nullptr;
  }
  /// What peers may access through an endpoint, which can handle device memory or not.
  protocol::Regions& of_endpoint(bool with_device_memory) noexcept {
    if (with_device_memory || !x_attributes.permit_device_memory()) return *this;
    return x_host;
  }

  /// The caller holds the domain lock. add() throws std::bad_alloc, and may then be repeated.
  void add(RegionUser& user);
  void remove(RegionUser& user) noexcept;
  /// Whether a region counts with it, so that endpoints keep it.
  bool counts_with(const Counter& cntr) const noexcept;

 private:
  /// What is unique of a region. The application may register several regions for itself with one
  /// key, since the key means nothing (Open MPI does): such a region has its own address, too.
  struct Name {
    uint64_t key;
    const MemoryRegion* local = nullptr;
    bool operator==(const Name&) const = default;
  };
  struct NameHash {
    size_t operator()(const Name& name) const noexcept {
      return name.key ^ reinterpret_cast<uintptr_t>(name.local);
    }
  };
  struct HostRegions final : protocol::Regions {
    explicit HostRegions(MemoryRegions& regions) noexcept : all(regions) {}
    protocol::Region* region(uint64_t key) noexcept override;
    MemoryRegions& all;
  };
  int register_for_peers(MemoryRegion& region, const NamedMemory& memory) const;
  Name name(const MemoryRegion& region) const noexcept;
  int choose_key(MemoryRegion& region) noexcept;
  int random_key(uint64_t& key) noexcept;
  void serve_rest() noexcept;
  bool await_users(MemoryRegion& region) noexcept;
  void drive_users(MemoryRegion& region, bool unanswered, bool late) noexcept;
  void unbind(MemoryRegion& region) noexcept;
  void watch(Counter& cntr);
  void unwatch(Counter& cntr) noexcept;

  util::DomainLock& x_lock;
  const util::Clock* const x_clock;
  const uint32_t x_epoch = util::process_epoch();
  const bool x_provider_keys;
  const RegionAttributes x_attributes;
  transport::RegionRegistrar* x_registrar = nullptr;
  std::atomic<transport::DeviceMemoryKeeper*> x_keeper{nullptr};
  Children* const x_children;
  std::unordered_map<Name, MemoryRegion*, NameHash> x_regions;
  HostRegions x_host{*this};
  std::vector<RegionUser*> x_users;
  std::array<uint64_t, 32> x_random{};
  size_t x_random_left = 0;
};

/// fi_mr_map_raw(3): turns a raw key of a peer into the key for operations.
int map_raw_key(const struct fi_mr_map_raw* map) noexcept;

/// For fid_domain::mr.
extern fi_ops_mr g_mr_ops;

}  // namespace erdma::fabric
