#pragma once

namespace erdma::fabric {

/// What drives completions into a CQ or counter: an endpoint. The caller holds the domain lock for
/// all but wait_fds().
class ProgressSource {
 public:
  /// Returns the number of steps forward.
  virtual int progress() noexcept = 0;
  /// True = nothing to do now, and one of the descriptors becomes readable when there is, if it is
  /// not from an earlier arm().
  virtual bool arm() noexcept = 0;
  /// Takes back what arm() promised: the descriptors are readable no more.
  virtual void disarm() noexcept = 0;
  /// Writes up to `room` descriptors to `fds`; returns how many there are. Constant after enable.
  virtual int wait_fds(int* fds, int room) const noexcept = 0;

 protected:
  ~ProgressSource() = default;
};

}  // namespace erdma::fabric
