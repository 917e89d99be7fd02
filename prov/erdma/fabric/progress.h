#pragma once

#include "transport/transport.h"

namespace erdma::fabric {

/// The source of completions of a CQ or counter: an endpoint. The caller holds the domain lock.
class ProgressSource {
 public:
  /// Makes progress. Returns the number of steps; 0 = nothing to do.
  virtual int progress() noexcept = 0;
  /// True: there is nothing to do now, and a descriptor becomes readable when there is, or is still
  /// readable since an earlier arm(). False: there is work.
  virtual bool arm() noexcept = 0;
  /// Undoes arm(): the descriptors are no longer readable.
  virtual void disarm() noexcept = 0;
  /// Writes up to `room` descriptors to `fds`, and returns how many there are. The result changes
  /// only by fi_enable and fi_close.
  virtual int wait_fds(int* fds, int room) const noexcept = 0;
  /// Transport::show_core(), and Transport::peer_shows() if `ask`.
  virtual bool show_core(const transport::CoreUse&, [[maybe_unused]] bool ask) noexcept {
    return false;
  }

 protected:
  ~ProgressSource() = default;
};

/// Makes progress until there is nothing to do, by `most` calls at most. A source that has just
/// received a message may leave out its next poll, but not two in succession.
inline void progress_until_idle(ProgressSource& source, int most) noexcept {
  for (int calls = 0, vain = 0; calls < most && vain < 2; ++calls)
    vain = source.progress() > 0 ? 0 : vain + 1;
}

}  // namespace erdma::fabric
