#pragma once

#include <cstddef>
#include <cstdint>

#include <rdma/fabric.h>

namespace erdma::protocol {

/// A finished operation, in the terms of fi_cq(3). The members have no initializers, so that arrays
/// of entries need no initialisation.
struct CompletionEntry {
  void* context;
  uint64_t flags;  ///< FI_SEND|FI_MSG, FI_RECV|FI_TAGGED|FI_REMOTE_CQ_DATA, ...
  size_t length;   ///< bytes received; 0 for sends
  void* buffer;    ///< start of a message in a multi-receive buffer
  uint64_t data;   ///< remote CQ data, if `flags` has FI_REMOTE_CQ_DATA
  uint64_t tag;
  uint64_t source;  ///< fi_addr_t of the sender, FI_ADDR_NOTAVAIL if unknown
};

/// A completion that is not in a completion queue yet.
struct Completion : CompletionEntry {
  Completion() noexcept {
    static_cast<CompletionEntry&>(*this) = {nullptr, 0, 0, nullptr, 0, 0, UINT64_MAX};
  }
  /// Marks the last completion of a multi-receive buffer. It is reported even if the other
  /// completions of the buffer are not (fi_msg(3)).
  void release_buffer() noexcept {
    flags |= FI_MULTI_RECV;
    report = true;
  }
  bool report = true;  ///< false: counters count it, no CQ entry is written (selective completion)
};

struct ErrorCompletion : Completion {
  ErrorCompletion() noexcept = default;
  ErrorCompletion(void* whose, uint64_t what, int why, uint64_t its_tag = 0) noexcept : error(why) {
    context = whose;
    flags = what;
    tag = its_tag;
  }

  size_t overflow = 0;     ///< fi_cq_err_entry::olen: bytes that did not fit
  int error = 0;           ///< positive fi_errno
  bool anonymous = false;  ///< the operation has no context: fi_inject() and similar functions
  bool counted = true;     ///< false: no counter counts it, since it received or sent nothing
};

/// The only upward call of the protocol layer. fabric/ implements it (CQ and counters). Each
/// operation ends in exactly one call of succeed() or fail().
class CompletionSink {
 public:
  /// Returns the entry of a successful operation. The caller fills in every member before it does
  /// anything else. The entry lies in the queue itself, because a copy costs as much as matching a
  /// message does.
  virtual CompletionEntry& succeed(bool report) noexcept = 0;
  void complete(const Completion& done) noexcept { succeed(done.report) = done; }
  virtual void fail(const ErrorCompletion& completion) noexcept = 0;
  /// As succeed(true), for an operation that no counter counts: a peek.
  virtual CompletionEntry& succeed_uncounted() noexcept { return succeed(true); }
  /// Returns true if a counter must see every completion, reported or not.
  virtual bool counts() const noexcept { return false; }

 protected:
  ~CompletionSink() = default;
};

}  // namespace erdma::protocol
