#pragma once

#include "util/intrusive_list.h"

namespace erdma::util {

/// Base of objects that are called before each fork of the process, by the thread that forks.
/// posix_spawn() and vfork() do not call them.
class BeforeFork : public ListHook<BeforeFork> {
 public:
  BeforeFork() = default;
  BeforeFork(const BeforeFork&) = delete;
  BeforeFork& operator=(const BeforeFork&) = delete;

  /// Must not call listen() or forget().
  virtual void before_fork() noexcept = 0;

 protected:
  ~BeforeFork() = default;  // the derived class has called forget()
  void listen() noexcept;
  /// After return no call of before_fork() is running, and none begins. Does nothing if listen()
  /// was never called.
  void forget() noexcept;
};

}  // namespace erdma::util
