#pragma once

#include <cstddef>
#include <cstdint>

#include <rdma/fabric.h>

namespace erdma::protocol {

/// A finished operation, in the terms of fi_cq(3). No initializers: arrays of it stay untouched.
struct CompletionEntry {
  void* context;
  uint64_t flags;  ///< FI_SEND|FI_MSG, FI_RECV|FI_TAGGED|FI_REMOTE_CQ_DATA, ...
  size_t length;   ///< bytes received; 0 for sends
  void* buffer;    ///< where multi-receive data was placed
  uint64_t data;   ///< remote CQ data, if flags say so
  uint64_t tag;
  uint64_t source;  ///< fi_addr_t of the sender, FI_ADDR_NOTAVAIL if unknown
};

/// The same on its way to the queue.
struct Completion : CompletionEntry {
  Completion() noexcept {
    static_cast<CompletionEntry&>(*this) = {nullptr, 0, 0, nullptr, 0, 0, UINT64_MAX};
  }
  /// The last of a multi-receive buffer is reported whether or not the others are: fi_msg(3).
  void release_buffer() noexcept {
    flags |= FI_MULTI_RECV;
    report = true;
  }
  bool report = true;  ///< false: counts, but writes no CQ entry (selective completion)
};

struct ErrorCompletion : Completion {
  ErrorCompletion() noexcept = default;
  ErrorCompletion(void* whose, uint64_t what, int why, uint64_t its_tag = 0) noexcept : error(why) {
    context = whose;
    flags = what;
    tag = its_tag;
  }

  size_t overflow = 0;     ///< olen: bytes that did not fit
  int error = 0;           ///< positive fi_errno
  int provider_error = 0;  ///< errno or status behind it; 0 if none
  bool anonymous = false;  ///< of fi_inject() and the like: the operation never had a context
};

/// The only upward call of the protocol layer. Implemented by fabric/ (CQ plus counter). Each
/// operation reaches exactly one of the two, exactly once.
class CompletionSink {
 public:
  /// Success: the caller fills in every member before it does anything else. Written where it is
  /// read, because a copy costs as much as matching a message.
  virtual CompletionEntry& succeed(bool report) noexcept = 0;
  void complete(const Completion& done) noexcept { succeed(done.report) = done; }
  virtual void fail(const ErrorCompletion& completion) noexcept = 0;
  /// Somebody waits for each of them, reported or not.
  virtual bool counts() const noexcept { return false; }

 protected:
  ~CompletionSink() = default;
};

}  // namespace erdma::protocol
