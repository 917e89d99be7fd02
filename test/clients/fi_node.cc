#include <cerrno>
#include <cstring>

#include "fi_common.h"

namespace erdma::clients {
namespace {

fi_info* find(const NodeOptions& options) {
  const char* provider = std::getenv("FI_PROVIDER");
  if (!provider) provider = "erdma";
  fi_info* hints = fi_allocinfo();
  REQUIRE(hints);
  hints->caps = options.caps;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->tx_attr->op_flags = options.op_flags;
  hints->domain_attr->mr_mode = options.mr_mode;
  hints->domain_attr->threading = options.threading;
  hints->domain_attr->control_progress = hints->domain_attr->data_progress = options.progress;
  hints->fabric_attr->prov_name = ::strdup(provider);
  fi_info* found = nullptr;
  const int rc = fi_getinfo(FI_VERSION(1, 9), nullptr, nullptr, 0, hints, &found);
  fi_freeinfo(hints);
  if (rc == -FI_ENODATA) {
    std::printf("SKIP provider %s does not offer what this test needs\n", provider);
    std::fflush(stdout);
    ::exit(77);
  }
  must(rc, "fi_getinfo");
  return found;
}

void mark(Op* op, int error, const fi_cq_tagged_entry& entry) {
  if (!op) return;
  op->error = error;
  op->length = entry.len;
  op->tag = entry.tag;
  op->data = entry.data;
  op->completions.fetch_add(1);
  op->done.store(true, std::memory_order_release);
}

void close(fid* object, const char* what) {
  if (object) must(fi_close(object), what);
}

}  // namespace

Node::Node(const NodeOptions& options) : x_info(find(options)), x_sleeps(options.sleeps) {
  must(fi_fabric(x_info->fabric_attr, &x_fabric, nullptr), "fi_fabric");
  must(fi_domain(x_fabric, x_info, &x_domain, nullptr), "fi_domain");
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  must(fi_av_open(x_domain, &av, &x_av, nullptr), "fi_av_open");
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_TAGGED;
  cq.size = 4096;
  cq.wait_obj = options.sleeps ? FI_WAIT_UNSPEC : FI_WAIT_NONE;
  must(fi_cq_open(x_domain, &cq, &x_cq, nullptr), "fi_cq_open");
  open_endpoint();
}

void Node::open_endpoint() {
  must(fi_endpoint(x_domain, x_info, &x_ep, nullptr), "fi_endpoint");
  must(fi_ep_bind(x_ep, &x_av->fid, 0), "fi_ep_bind av");
  must(fi_ep_bind(x_ep, &x_cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind cq");
  must(fi_enable(x_ep), "fi_enable");
}

Node::~Node() {
  close_endpoint();
  close(&x_cq->fid, "fi_close cq");
  close(&x_av->fid, "fi_close av");
  close(&x_domain->fid, "fi_close domain");
  close(&x_fabric->fid, "fi_close fabric");
  fi_freeinfo(x_info);
}

void Node::close_endpoint() {
  if (x_ep) close(&x_ep->fid, "fi_close endpoint");
  x_ep = nullptr;
}

std::string Node::name() const {
  char bytes[128];
  size_t length = sizeof bytes;
  must(fi_getname(&x_ep->fid, bytes, &length), "fi_getname");
  return {bytes, length};
}

fi_addr_t Node::insert(const std::string& name) {
  std::string copy = name + std::string(8, '\0');  // string addresses (shm) end with a zero
  fi_addr_t address = FI_ADDR_UNSPEC;
  const int rc = fi_av_insert(x_av, copy.data(), 1, &address, 0, nullptr);
  if (rc != 1) fail("fi_av_insert: %d", rc);
  return address;
}

int Node::progress() {
  fi_cq_tagged_entry found[16];
  return take(fi_cq_read(x_cq, found, 16), found);
}

int Node::take(ssize_t count, const fi_cq_tagged_entry* found) {
  if (count == -FI_EAGAIN) return 0;
  if (count == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    const ssize_t read = fi_cq_readerr(x_cq, &error, 0);
    if (read == -FI_EAGAIN) return 0;  // another thread has read the entry
    if (read != 1) fail("fi_cq_readerr: %zd", read);
    fi_cq_tagged_entry entry{};
    entry.len = error.len;
    entry.tag = error.tag;
    mark(static_cast<Op*>(error.op_context), error.err, entry);
    return 1;
  }
  if (count < 0) fail("fi_cq_read: %zd (%s)", count, fi_strerror(int(-count)));
  for (ssize_t i = 0; i < count; ++i) mark(static_cast<Op*>(found[i].op_context), 0, found[i]);
  return int(count);
}

int Node::tsend(Op& op, const void* data, size_t length, fi_addr_t to, uint64_t tag) {
  op.reset();
  return int(fi_tsend(x_ep, data, length, nullptr, to, tag, &op));
}

int Node::trecv(Op& op, void* data, size_t length, fi_addr_t from, uint64_t tag, uint64_t ignore) {
  op.reset();
  return int(fi_trecv(x_ep, data, length, nullptr, from, tag, ignore, &op));
}

void Node::send(Op& op, const void* data, size_t length, fi_addr_t to, uint64_t tag) {
  int rc;
  const auto start = Clock::now();
  while ((rc = tsend(op, data, length, to, tag)) == -FI_EAGAIN) {
    progress();
    if (seconds_since(start) > 60) fail("fi_tsend: -FI_EAGAIN for 60 s");
  }
  must(rc, "fi_tsend");
}

void Node::receive(Op& op, void* data, size_t length, fi_addr_t from, uint64_t tag,
                   uint64_t ignore) {
  int rc;
  while ((rc = trecv(op, data, length, from, tag, ignore)) == -FI_EAGAIN) progress();
  must(rc, "fi_trecv");
}

void Node::wait(Op& op, double limit_s) {
  wait_until([&] { return op.done.load(std::memory_order_acquire); }, "a completion", limit_s);
}

void Node::wait_until(const std::function<bool()>& condition, const char* what, double limit_s) {
  const auto start = Clock::now();
  fi_cq_tagged_entry found[16];
  while (!condition()) {
    if (x_sleeps)
      take(fi_cq_sread(x_cq, found, 16, nullptr, 1000), found);
    else
      progress();
    if (seconds_since(start) > limit_s) fail("waited %.0f s for %s", limit_s, what);
  }
}

}  // namespace erdma::clients
