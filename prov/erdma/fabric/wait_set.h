#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_eq.h>

#include "fabric/fid_ops.h"
#include "fabric/wait.h"
#include "util/lock.h"

namespace erdma::fabric {

/// One wait set: its descriptor is readable when that of one of its members is. Thread-safe by its
/// own mutex, which is taken before the lock of a domain, and not held while a thread sleeps.
/// Invariants:
/// - The set outlives its members: fi_close returns -FI_EBUSY while it has any, and while a thread
///   is in wait().
/// - News that a member reports only once (the change of a counter) ends every wait() that began
///   before, and makes the descriptor readable.
class WaitSet final : public FidObject<WaitSet, fid_wait> {
 public:
  WaitSet(Children& siblings, std::unique_ptr<WaitObject> wait, fi_wait_obj object) noexcept;

  /// `fd` is the object's descriptor, which is readable when the object has news, or may have some.
  int add(fid_t object, int fd);
  /// After return no thread looks at the object on behalf of the set.
  void remove(fid_t object, int fd) noexcept;

  /// fi_wait(3): 0 if a member has news, or -FI_ETIMEDOUT.
  int wait(int timeout_ms) noexcept;
  /// For fi_trywait(3).
  int try_wait() noexcept;
  int control(int command, void* argument) noexcept;
  int close() noexcept;

 private:
  Readiness look() noexcept;
  void tell() noexcept;
  void sleep(std::unique_lock<util::OwnedMutex>& lock, const Deadline& deadline,
             Readiness found) noexcept;

  util::OwnedMutex x_mutex;
  std::vector<fid_t> x_members;
  Sleepers x_callers;   ///< threads in wait(); look() tells them of news
  Sleepers x_sleepers;  ///< those of them that sleep
  std::unique_ptr<WaitObject> x_wait;
  const fi_wait_obj x_wait_object;
};

/// An object's membership in the wait set that its attributes name, if any. The destructor ends it.
class WaitSetMember {
 public:
  WaitSetMember() noexcept = default;
  WaitSetMember(const WaitSetMember&) = delete;
  WaitSetMember& operator=(const WaitSetMember&) = delete;
  ~WaitSetMember() { leave(); }

  int join(fid_wait* set, fid_t object, int fd);
  void leave() noexcept {
    if (x_set) std::exchange(x_set, nullptr)->remove(x_object, x_fd);
  }

 private:
  WaitSet* x_set = nullptr;
  fid_t x_object = nullptr;
  int x_fd = -1;
};

/// fi_wait_open(3).
int open_wait_set(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** set) noexcept;

}  // namespace erdma::fabric
