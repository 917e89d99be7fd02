#pragma once

#include <vector>

#include "fabric/rig.h"

namespace erdma::test {

/// How a shared receive context is opened.
enum class WithCaps { own, none, no_attr };

inline fid_ep* open_context(Root& root, WithCaps with = WithCaps::own) {
  fi_rx_attr attr = *root.info->rx_attr;
  attr.caps =
      with == WithCaps::own ? FI_MSG | FI_TAGGED | FI_RECV | FI_MULTI_RECV | FI_DIRECTED_RECV : 0;
  fid_ep* srx = nullptr;
  ck_assert_int_eq(
      fi_srx_context(root.domain, with == WithCaps::no_attr ? nullptr : &attr, &srx, nullptr), 0);
  return srx;
}

/// An endpoint with a shared receive context, and queues that the test owns.
struct Member {
  Member(Root& root, fid_ep* srx, fid_cq* cq, fid_av* av, uint64_t flags = 0) {
    fi_info* info = fi_dupinfo(root.info);
    info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    ck_assert_int_eq(fi_endpoint(root.domain, info, &ep, nullptr), 0);
    fi_freeinfo(info);
    ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | flags), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
    ck_assert_int_eq(fi_enable(ep), -FI_ENORX);
    ck_assert_int_eq(fi_ep_bind(ep, &srx->fid, 0), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &srx->fid, 0), -FI_EINVAL);
    ck_assert_int_eq(fi_enable(ep), 0);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    if (ep) ck_assert_int_eq(fi_close(&ep->fid), 0);
  }
  std::vector<char> name() const { return name_of_endpoint(ep); }
  fid_ep* ep = nullptr;
};

inline fi_addr_t insert(fid_av* av, const std::vector<char>& name) {
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  ck_assert_int_eq(fi_av_insert(av, name.data(), 1, &address, 0, nullptr), 1);
  return address;
}

/// Two endpoints share a context; a sender knows both.
struct Shared {
  explicit Shared(const Ask& ask = {}, fi_wait_obj wait = FI_WAIT_NONE, uint64_t flags = 0,
                  WithCaps with = WithCaps::own)
      : root(ask),
        other(ask),
        srx(open_context(root, with)),
        cq(root.open_cq(FI_CQ_FORMAT_TAGGED, wait)),
        av(root.open_av()),
        one(root, srx, cq, av, flags),
        two(root, srx, cq, av, flags),
        sender(other),
        to{insert(sender.av, one.name()), insert(sender.av, two.name())},
        source(insert(av, sender.name())) {}
  ~Shared() {
    for (Member* member : {&one, &two}) {
      if (member->ep) ck_assert_int_eq(fi_close(&member->ep->fid), 0);
      member->ep = nullptr;
    }
    ck_assert_int_eq(fi_close(&srx->fid), 0);
    ck_assert_int_eq(fi_close(&cq->fid), 0);
    ck_assert_int_eq(fi_close(&av->fid), 0);
  }

  fi_cq_tagged_entry wait() {
    fi_cq_tagged_entry entry{};
    for (;;) {
      const ssize_t rc = fi_cq_read(cq, &entry, 1);
      if (rc == 1) return entry;
      ck_assert_msg(rc == -FI_EAGAIN, "fi_cq_read: %s", fi_strerror(int(-rc)));
      sender.progress();
    }
  }
  fi_cq_err_entry wait_error() {
    fi_cq_tagged_entry entry{};
    ssize_t rc;
    while ((rc = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) sender.progress();
    ck_assert_int_eq(rc, -FI_EAVAIL);
    fi_cq_err_entry error{};
    ck_assert_int_eq(fi_cq_readerr(cq, &error, 0), 1);
    return error;
  }
  void tsend(int which, const void* bytes, size_t length, uint64_t tag) {
    ck_assert_int_eq(fi_tsend(sender.ep, bytes, length, nullptr, to[which], tag, nullptr), 0);
    ck_assert_int_eq(int(sender.wait().flags & FI_SEND), int(FI_SEND));
  }

  Root root, other;
  fid_ep* srx;
  fid_cq* cq;
  fid_av* av;
  Member one, two;
  Port sender;
  fi_addr_t to[2];
  fi_addr_t source;
};

}  // namespace erdma::test
