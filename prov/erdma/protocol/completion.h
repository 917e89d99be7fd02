#pragma once

#include <cstddef>
#include <cstdint>

namespace erdma::protocol {

/// A finished operation, in the terms of fi_cq(3).
struct Completion {
  void* context = nullptr;
  uint64_t flags = 0;      ///< FI_SEND|FI_MSG, FI_RECV|FI_TAGGED|FI_REMOTE_CQ_DATA, ...
  size_t length = 0;       ///< bytes received; 0 for sends
  void* buffer = nullptr;  ///< where multi-receive data was placed
  uint64_t data = 0;       ///< remote CQ data, if flags say so
  uint64_t tag = 0;
  uint64_t source = UINT64_MAX;  ///< fi_addr_t of the sender, FI_ADDR_NOTAVAIL if unknown
  bool report = true;            ///< false: counts, but writes no CQ entry (selective completion)
};

struct ErrorCompletion : Completion {
  size_t overflow = 0;     ///< olen: bytes that did not fit
  int error = 0;           ///< positive fi_errno
  int provider_error = 0;  ///< errno or status behind it; 0 if none
};

/// The only upward call of the protocol layer. Implemented by fabric/ (CQ plus counter). Each
/// operation reaches exactly one of the two, exactly once.
class CompletionSink {
 public:
  virtual void complete(const Completion& completion) noexcept = 0;
  virtual void fail(const ErrorCompletion& completion) noexcept = 0;

 protected:
  ~CompletionSink() = default;
};

}  // namespace erdma::protocol
