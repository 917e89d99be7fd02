#pragma once

#include "util/intrusive_list.h"

namespace erdma::util {

/// Who is called before each fork of the process, by the thread that forks; not where a process is
/// started without a fork (posix_spawn(), vfork()).
class BeforeFork : public ListHook<BeforeFork> {
 public:
  BeforeFork() = default;
  BeforeFork(const BeforeFork&) = delete;
  BeforeFork& operator=(const BeforeFork&) = delete;

  /// Neither listen() nor forget() may be called here.
  virtual void before_fork() noexcept = 0;

 protected:
  ~BeforeFork() = default;  // after forget()
  void listen() noexcept;
  /// No call begins any more, and none is under way. Does nothing to who never listened.
  void forget() noexcept;
};

}  // namespace erdma::util
