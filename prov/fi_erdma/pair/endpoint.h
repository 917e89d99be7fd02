#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "fi_erdma/objects.h"
#include "fi_erdma/pair/options.h"

namespace fi_erdma::pair {

class Channel;

/// One operation of the application. It must not be moved before it has completed.
struct Operation {
  fi_context2 context{};  // must be first: completions return its address as op_context
  int completions = 0;
  int error = 0;  ///< fi_errno of the completion; 0: success
  uint64_t flags = 0;
  size_t length = 0;
  uint64_t tag = 0;
  double at_s = 0;  ///< when it completed
  bool done() const noexcept { return completions > 0; }
};

/// Fabric, domain, AV, CQ and one enabled RDM endpoint of the provider that the options name. A
/// completion that belongs to no operation, or comes a second time, ends the process with kFailed.
class Endpoint {
 public:
  Endpoint(const Options& options, uint64_t caps);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;

  std::string name() const;
  /// Fails if it cannot be an address of this provider.
  fi_addr_t insert(const std::string& name);
  fid_ep* ep() const noexcept { return x_port.ep.get(); }
  fid_domain* domain() const noexcept { return x_domain.domain.get(); }
  const fi_info& info() const noexcept { return *x_info; }
  bool needs_registration() const noexcept;

  /// Makes until() fail soon after the side behind this channel is gone. The channel must outlive
  /// the endpoint.
  void watch(const Channel& other) noexcept { x_other = &other; }

  void progress();
  /// Makes progress until the condition is true; fails after the time limit of the options.
  void until(const std::function<bool()>& condition, const char* what);
  /// Calls `post` again as long as it returns -FI_EAGAIN. Fails if it returns another error.
  void post(const std::function<ssize_t()>& post, const char* what);
  /// Waits for the operation and fails if it ended in an error.
  void finish(Operation& operation, const char* what);

 private:
  void take_error();

  const double x_limit_s;
  const Channel* x_other = nullptr;
  const Info x_info;
  const DomainOf x_domain;
  Port x_port;
};

}  // namespace fi_erdma::pair
