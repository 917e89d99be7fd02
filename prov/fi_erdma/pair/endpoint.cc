#include "fi_erdma/pair/endpoint.h"

#include <sched.h>

#include <cstring>

#include "fi_erdma/libfabric.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {
namespace {

constexpr double kAfterTheOther = 2;        // seconds
constexpr int kSharedMemoryPermitted = 11;  // FI_OPT_SHARED_MEMORY_PERMITTED of newer headers

char* copy_of(const std::string& text) {
  return text.empty() ? nullptr : ::strdup(text.c_str());
}

Info find(const Options& options, uint64_t caps) {
  const Info hints = new_info();
  const bool device = options.memory != "host";
  hints->caps = caps | (device ? FI_HMEM : 0);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | (device ? FI_MR_HMEM : 0);
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->name = copy_of(options.domain);
  hints->fabric_attr->prov_name = copy_of(options.provider);
  const char* node = options.source.empty() ? nullptr : options.source.c_str();
  fi_info* found = nullptr;
  const int rc = libfabric().getinfo(FI_VERSION(1, 17), hints.get(), &found, node);
  if (rc == -FI_ENODATA) {
    not_supported("provider %s does not offer what this test needs", options.provider.c_str());
  }
  must(rc, "fi_getinfo");
  return Info(found);
}

/// Returns what the calls return. If one fails, this process ends.
template <class Calls>
auto or_fail(const Calls& calls) {
  try {
    return calls();
  } catch (const CallFailed& failed) {
    must(failed.status, failed.call);
    throw;  // not reached
  }
}

void forbid_shared_memory(fid_ep* ep) {
  const bool permitted = false;
  const int rc =
      fi_setopt(&ep->fid, FI_OPT_ENDPOINT, kSharedMemoryPermitted, &permitted, sizeof permitted);
  if (rc != 0)
    not_supported("FI_OPT_SHARED_MEMORY_PERMITTED: %s", libfabric().error_text(rc).c_str());
}

void complete(void* context, int error, uint64_t flags, size_t length, uint64_t tag) {
  if (!context) fail("a completion without a context");
  auto& operation = *static_cast<Operation*>(context);
  if (operation.done()) fail("a second completion of one operation");
  ++operation.completions;
  operation.error = error;
  operation.flags = flags;
  operation.length = length;
  operation.tag = tag;
  operation.at_s = now_s();
}

}  // namespace

Endpoint::Endpoint(const Options& options, uint64_t caps)
    : x_limit_s(options.limit_s),
      x_info(find(options, caps)),
      x_domain(or_fail([&] { return DomainOf(x_info.get()); })),
      x_port(or_fail([&] {
        fi_cq_attr cq{};
        cq.format = FI_CQ_FORMAT_TAGGED;
        cq.size = 8192;
        return Port(domain(), x_info.get(), cq);
      })) {
  if (options.nic_only) forbid_shared_memory(ep());
  or_fail([&] { x_port.enable(); });
}

Endpoint::~Endpoint() = default;

bool Endpoint::needs_registration() const noexcept {
  return (x_info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
}

std::string Endpoint::name() const {
  return or_fail([&] { return x_port.name(); });
}

fi_addr_t Endpoint::insert(const std::string& name) {
  // A provider reads as many bytes as its addresses have, or a string up to its final zero.
  const size_t own = Endpoint::name().size();
  if (x_info->addr_format != FI_ADDR_STR && name.size() != own)
    fail("the address of the other side has %zu byte%s, not %zu: is its provider another one?",
         name.size(), name.size() == 1 ? "" : "s", own);
  return or_fail([&] { return x_port.insert(name); });
}

void Endpoint::progress() {
  fi_cq_tagged_entry found[16];
  const ssize_t count = fi_cq_read(x_port.cq.get(), found, 16);
  if (count == -FI_EAGAIN) return;
  if (count == -FI_EAVAIL) return take_error();
  if (count < 0) fail("fi_cq_read: %s", libfabric().error_text(int(count)).c_str());
  for (ssize_t i = 0; i < count; ++i) {
    complete(found[i].op_context, 0, found[i].flags, found[i].len, found[i].tag);
  }
}

void Endpoint::take_error() {
  fi_cq_err_entry error{};
  const ssize_t rc = fi_cq_readerr(x_port.cq.get(), &error, 0);
  if (rc == -FI_EAGAIN) return;
  if (rc != 1) fail("fi_cq_readerr: %zd", rc);
  if (error.err == 0) fail("an error completion without an error");
  complete(error.op_context, error.err, error.flags, error.len, error.tag);
}

void Endpoint::until(const std::function<bool()>& condition, const char* what) {
  const double start = now_s();
  double gone_at = 0;
  for (unsigned turns = 1; !condition(); ++turns) {
    progress();
    if (turns % 256 != 0) continue;
    ::sched_yield();
    const double now = now_s();
    if (now - start > x_limit_s) fail("waited %.0f s for %s", x_limit_s, what);
    if (gone_at == 0 && x_other && x_other->gone()) gone_at = now;
    // The last operations may still complete.
    if (gone_at > 0 && now - gone_at > kAfterTheOther)
      fail("the other side is gone before %s", what);
  }
}

void Endpoint::post(const std::function<ssize_t()>& post, const char* what) {
  ssize_t rc = 0;
  until([&] { return (rc = post()) != -FI_EAGAIN; }, what);
  must(rc, what);
}

void Endpoint::finish(Operation& operation, const char* what) {
  until([&] { return operation.done(); }, what);
  if (operation.error) fail("%s: %s", what, libfabric().error_text(-operation.error).c_str());
}

}  // namespace fi_erdma::pair
