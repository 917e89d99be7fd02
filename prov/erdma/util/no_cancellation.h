#pragma once

#include <pthread.h>

namespace erdma::util {

/// While it exists, pthread_cancel(3) does not end the calling thread: the thread would leave
/// functions that are noexcept, which ends the process. A request waits for the thread's next
/// cancellation point. It costs 8 ns, which other calls save. It is for calls that may sleep, in
/// which a request is likely to find the thread. These need it before they look for the first time:
/// a request may have come before the call, and progress has cancellation points.
class NoCancellation {
 public:
  NoCancellation() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &x_before); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;
  ~NoCancellation() { pthread_setcancelstate(x_before, nullptr); }

 private:
  int x_before = PTHREAD_CANCEL_ENABLE;
};

}  // namespace erdma::util
