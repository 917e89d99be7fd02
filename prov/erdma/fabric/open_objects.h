#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "util/intrusive_list.h"
#include "util/lock.h"
#include "util/process_epoch.h"

namespace erdma::fabric {

/// The open objects of one class, the oldest first, which fi_getinfo(3) finds here. Thread-safe. A
/// forked child begins with none: it can't use those of its parent, and a thread of the parent may
/// have been changing the list at the fork.
template <typename T>
class OpenObjects {
 public:
  /// A base class of T.
  class Member : public util::ListHook<T> {
    friend class OpenObjects;
    uint32_t x_epoch = 0;
  };

  void add(T& object) noexcept {
    const std::lock_guard guard(x_lock);
    forget_parent();
    static_cast<Member&>(object).x_epoch = x_epoch;
    x_list.push_back(object);
  }
  /// Afterwards first() looks at the object no more.
  void remove(T& object) noexcept {
    const std::lock_guard guard(x_lock);
    const Member& member = object;
    if (member.linked() && member.x_epoch == util::process_epoch()) x_list.erase(object);
  }
  /// The oldest object for which fits(object) is true, or null. fits() must not open or close
  /// objects.
  template <typename Fits>
  T* first(Fits&& fits) noexcept {
    const std::lock_guard guard(x_lock);
    forget_parent();
    for (T* object = x_list.front(); object; object = x_list.next(*object))
      if (fits(*object)) return object;
    return nullptr;
  }

 private:
  void forget_parent() noexcept {
    if (x_epoch == util::process_epoch()) return;
    x_epoch = util::process_epoch();
    std::construct_at(&x_list);
  }

  util::EpochLock x_lock;
  uint32_t x_epoch = 0;
  util::IntrusiveList<T> x_list;
};

class Domain;
class Fabric;

inline OpenObjects<Domain> g_open_domains;
inline OpenObjects<Fabric> g_open_fabrics;

}  // namespace erdma::fabric
