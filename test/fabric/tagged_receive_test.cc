// FI_TAGGED_MULTI_RECV and FI_TAGGED_DIRECTED_RECV, which headers of libfabric 2 have.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "fabric/info_offer.h"
#include "fabric/rig.h"

namespace {

using namespace erdma::test;
using erdma::fabric::kTaggedDirectedRecv;
using erdma::fabric::kTaggedMultiRecv;

constexpr uint64_t kDirectedBit = uint64_t{1} << 45, kMultiBit = uint64_t{1} << 46;
constexpr bool kOffered = kTaggedMultiRecv != 0;
constexpr uint32_t kNew = FI_VERSION(2, 0);

int asked(uint64_t caps) {
  fi_info *hints = fi_allocinfo(), *info = nullptr;
  hints->caps = caps;
  const int rc = provider()->getinfo(kNew, nullptr, nullptr, 0, hints, &info);
  if (rc == 0) ck_assert_uint_eq(info->caps & caps, caps);
  if (rc == 0) ck_assert_uint_eq(info->rx_attr->caps & caps, caps);
  fi_freeinfo(hints);
  if (info) fi_freeinfo(info);
  return rc;
}

/// An endpoint with these capabilities and default flags, and a peer that sends.
struct Pair {
  explicit Pair(uint64_t caps, uint64_t op_flags = 0, uint64_t rx_caps = 0)
      : root({.version = kNew, .caps = caps}), other({.version = kNew}) {
    root.info->rx_attr->op_flags = op_flags;
    root.info->rx_attr->caps |= rx_caps;
    b = std::make_unique<Port>(root);
    a = std::make_unique<Port>(other);
    to = a->insert(*b);
    from = b->insert(*a);
  }
  ssize_t post(uint64_t flags, uint64_t tag = 0, uint64_t ignore = UINT64_MAX,
               fi_addr_t source = FI_ADDR_UNSPEC) {
    const iovec iov{buffer, sizeof(buffer)};
    const fi_msg_tagged msg{&iov, nullptr, 1, source, tag, ignore, &context, 0};
    return fi_trecvmsg(b->ep, &msg, flags);
  }
  void send(uint64_t tag) {
    char word[50];
    std::memset(word, char(tag), sizeof(word));
    ck_assert_int_eq(fi_tinject(a->ep, word, sizeof(word), to, tag), 0);
  }
  fi_cq_tagged_entry wait() { return b->wait(a.get()); }

  Root root, other;
  std::unique_ptr<Port> b, a;
  fi_addr_t to, from;
  char buffer[256];
  fi_context context;
};

TEST(they_are_offered_by_headers_that_have_them_to_who_asks) {
  const int expected = kOffered ? 0 : -FI_ENODATA;
  ck_assert_int_eq(asked(FI_TAGGED | kMultiBit), expected);
  ck_assert_int_eq(asked(FI_TAGGED | kDirectedBit), expected);
  ck_assert_int_eq(asked(uint64_t{1} << 48), -FI_ENODATA);  // FI_EXACT_DIRECTED_RECV
  ck_assert(!kOffered || (kTaggedMultiRecv == kMultiBit && kTaggedDirectedRecv == kDirectedBit));
}

TEST(without_the_capability_the_flag_is_refused_and_as_a_default_ignored) {
  Pair pair(FI_TAGGED, FI_MULTI_RECV);
  ck_assert_int_eq(pair.post(FI_MULTI_RECV), -FI_EBADFLAGS);
  ck_assert_int_eq(fi_trecv(pair.b->ep, pair.buffer, sizeof(pair.buffer), nullptr, FI_ADDR_UNSPEC,
                            7, 0, &pair.context),
                   0);
  pair.send(7);
  const fi_cq_tagged_entry entry = pair.wait();
  ck_assert_uint_eq(entry.flags, FI_RECV | FI_TAGGED);
  pair.send(7);
  ck_assert_int_eq(fi_trecv(pair.b->ep, pair.buffer, sizeof(pair.buffer), nullptr, FI_ADDR_UNSPEC,
                            7, 0, pair.buffer),
                   0);
  ck_assert_ptr_eq(pair.wait().op_context, pair.buffer);  // the first buffer took one message
}

void fill(Pair& pair) {
  for (uint64_t i = 1; i <= 4; ++i) {
    pair.send(i);
    const fi_cq_tagged_entry entry = pair.wait();
    ck_assert_ptr_eq(entry.op_context, &pair.context);
    ck_assert_uint_eq(entry.tag, i);
    ck_assert_uint_eq(entry.len, 50);
    ck_assert_ptr_eq(entry.buf, pair.buffer + 50 * (i - 1));
    ck_assert_int_eq(*static_cast<char*>(entry.buf), char(i));
    ck_assert_uint_eq(entry.flags, FI_RECV | FI_TAGGED | (i == 4 ? FI_MULTI_RECV : 0));
  }
}

TEST_CASE(.offered = [] { return kOffered; });

TEST(one_buffer_takes_messages_until_it_is_used_up, 2) {
  Pair pair(FI_TAGGED | kTaggedMultiRecv, _i ? FI_MULTI_RECV : 0);
  if (_i)  // FI_MULTI_RECV is a default flag
    ck_assert_int_eq(fi_trecv(pair.b->ep, pair.buffer, sizeof(pair.buffer), nullptr, FI_ADDR_UNSPEC,
                              0, UINT64_MAX, &pair.context),
                     0);
  else
    ck_assert_int_eq(pair.post(FI_MULTI_RECV), 0);
  fill(pair);
  ck_assert_int_eq(fi_cancel(&pair.b->ep->fid, &pair.context), -FI_ENOENT);
}

TEST(a_buffer_takes_what_came_before_it_and_can_be_cancelled) {
  Pair pair(FI_TAGGED | kTaggedMultiRecv);
  for (const uint64_t tag : {0x11u, 0x21u, 0x12u}) pair.send(tag);
  ck_assert_int_eq(pair.post(FI_PEEK, 0x21, 0), 0);  // waits until the message has arrived
  for (;;) {
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    const ssize_t rc = fi_cq_read(pair.b->cq, &entry, 1);
    pair.a->progress();
    if (rc == 1) break;
    if (rc != -FI_EAVAIL) continue;
    ck_assert_int_eq(fi_cq_readerr(pair.b->cq, &error, 0), 1);
    ck_assert_int_eq(error.err, FI_ENOMSG);
    ck_assert_int_eq(pair.post(FI_PEEK, 0x21, 0), 0);
  }
  ck_assert_int_eq(pair.post(FI_MULTI_RECV, 0x10, 0x0F), 0);
  ck_assert_uint_eq(pair.wait().tag, 0x11);
  ck_assert_uint_eq(pair.wait().tag, 0x12);
  ck_assert_int_eq(fi_cancel(&pair.b->ep->fid, &pair.context), 0);
  const fi_cq_err_entry error = pair.b->wait_error();
  ck_assert_int_eq(error.err, FI_ECANCELED);
  ck_assert_ptr_eq(error.op_context, &pair.context);
  ck_assert_int_eq(pair.post(0, 0x21, 0), 0);
  ck_assert_uint_eq(pair.wait().tag, 0x21);
}

TEST(a_peek_or_claim_takes_no_buffer_for_several) {
  Pair pair(FI_TAGGED | kTaggedMultiRecv);
  for (const uint64_t probe : {FI_PEEK, FI_CLAIM, FI_PEEK | FI_CLAIM, FI_PEEK | FI_DISCARD})
    ck_assert_int_eq(pair.post(FI_MULTI_RECV | probe), -FI_EBADFLAGS);
}

TEST(a_shared_context_takes_a_buffer_for_several) {
  Root root({.version = kNew, .caps = FI_TAGGED | kTaggedMultiRecv}), other({.version = kNew});
  fid_ep *srx = nullptr, *ep = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, root.info->rx_attr, &srx, nullptr), 0);
  root.info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  Port port(other);
  fid_cq* const cq = root.open_cq();
  fid_av* const av = root.open_av();
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
  for (fid_t object : {&av->fid, &srx->fid}) ck_assert_int_eq(fi_ep_bind(ep, object, 0), 0);
  ck_assert_int_eq(fi_enable(ep), 0);
  char name[64], buffer[100];
  size_t length = sizeof(name);
  fi_addr_t to = FI_ADDR_NOTAVAIL;
  ck_assert_int_eq(fi_getname(&ep->fid, name, &length), 0);
  ck_assert_int_eq(fi_av_insert(port.av, name, 1, &to, 0, nullptr), 1);
  const iovec iov{buffer, sizeof(buffer)};
  const fi_msg_tagged msg{&iov, nullptr, 1, FI_ADDR_UNSPEC, 8, 7, buffer, 0};
  ck_assert_int_eq(fi_trecvmsg(srx, &msg, FI_MULTI_RECV), 0);
  for (uint64_t i = 0; i < 2; ++i) {
    ck_assert_int_eq(fi_tinject(port.ep, "thirty bytes, or so, of a text", 30, to, 8 + i), 0);
    fi_cq_tagged_entry entry{};
    while (fi_cq_read(cq, &entry, 1) == -FI_EAGAIN) port.progress();
    ck_assert_uint_eq(entry.tag, 8 + i);
    ck_assert_ptr_eq(entry.buf, buffer + 30 * i);
    ck_assert_uint_eq(entry.flags, FI_RECV | FI_TAGGED | (i == 1 ? FI_MULTI_RECV : 0));
  }
  for (fid_t object : {&ep->fid, &srx->fid, &cq->fid, &av->fid})
    ck_assert_int_eq(fi_close(object), 0);
}

TEST_CASE();

/// There are two receives, and the first names a source that does not send. Some applications ask
/// for the capability in rx_attr only.
TEST(the_source_counts_for_the_receives_that_it_was_asked_for, 5) {
  const struct {
    uint64_t caps, rx_caps;
    bool tagged, untagged;
  } cases[] = {{0, 0, false, false},
               {FI_DIRECTED_RECV, 0, true, true},
               {0, FI_DIRECTED_RECV, true, true},
               {kDirectedBit, 0, true, false},
               {0, kDirectedBit, true, false}};
  const auto& c = cases[_i];
  if (_i > 2 && !kOffered) return;
  Pair pair(FI_MSG | FI_TAGGED | c.caps, 0, c.rx_caps);
  const fi_addr_t self = pair.b->insert(*pair.b);
  char bytes[2][50];
  fid_ep* const ep = pair.b->ep;
  for (int i = 0; i < 2; ++i) {
    const fi_addr_t source = i ? pair.from : self;
    ck_assert_int_eq(fi_trecv(ep, bytes[i], 50, nullptr, source, 1, 0, &bytes[i]), 0);
  }
  pair.send(1);
  ck_assert_ptr_eq(pair.wait().op_context, &bytes[c.tagged]);
  for (int i = 0; i < 2; ++i) {
    const fi_addr_t source = i ? pair.from : self;
    ck_assert_int_eq(fi_recv(ep, bytes[i], 50, nullptr, source, &bytes[i]), 0);
  }
  ck_assert_int_eq(fi_inject(pair.a->ep, "u", 1, pair.to), 0);
  ck_assert_ptr_eq(pair.wait().op_context, &bytes[c.untagged]);
}

/// A wildcard receive matches in order among those that name a source.
TEST(a_wildcard_takes_its_turn_among_directed_receives) {
  Pair pair(FI_TAGGED | FI_DIRECTED_RECV);
  const fi_addr_t self = pair.b->insert(*pair.b);
  const fi_addr_t sources[] = {self, FI_ADDR_UNSPEC, pair.from, FI_ADDR_UNSPEC};
  char bytes[4][50];
  for (int i = 0; i < 4; ++i)
    ck_assert_int_eq(fi_trecv(pair.b->ep, bytes[i], 50, nullptr, sources[i], 1, 0, &bytes[i]), 0);
  for (const int expected : {1, 2, 3}) {
    pair.send(1);
    ck_assert_ptr_eq(pair.wait().op_context, &bytes[expected]);
  }
  pair.send(1);  // waits, as the remaining receive names another source
  ck_assert_int_eq(fi_tinject(pair.b->ep, "self", 4, self, 1), 0);
  ck_assert_ptr_eq(pair.wait().op_context, &bytes[0]);
  ck_assert_int_eq(fi_trecv(pair.b->ep, bytes[1], 50, nullptr, FI_ADDR_UNSPEC, 1, 0, &pair.context),
                   0);
  ck_assert_ptr_eq(pair.wait().op_context, &pair.context);
}

}  // namespace
