// Calls that are not offered return an error. They never crash, and never pretend to succeed.
#include <cstring>

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_trigger.h>

#include "fabric/one_sided_rig.h"
#include "fake/captured_log.h"

// For poll sets and wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;

TEST_CASE(.set_up = on_shm);

TEST(objects_that_do_not_exist_are_enosys) {
  Root root(one_sided_ask());
  fid_ep* ep = nullptr;
  fid_stx* stx = nullptr;
  fid_pep* pep = nullptr;
  fi_collective_attr collective{};
  ck_assert_int_eq(fi_scalable_ep(root.domain, root.info, &ep, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_stx_context(root.domain, nullptr, &stx, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_passive_ep(root.fabric, root.info, &pep, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_query_collective(root.domain, FI_BARRIER, &collective, 0), -FI_ENOSYS);
  ck_assert(!ep && !stx && !pep);
}

TEST(operations_that_do_not_exist_are_enosys) {
  Root root(one_sided_ask());
  Port port(root);
  void* ops = nullptr;
  for (fid_t fid : {&root.fabric->fid, &root.domain->fid, &port.ep->fid})
    ck_assert_int_eq(fi_open_ops(fid, "no such operations", 0, &ops, nullptr), -FI_ENOSYS);
  ck_assert_ptr_null(ops);
  fid_ep* other = nullptr;
  ck_assert_int_eq(fi_tx_context(port.ep, 0, nullptr, &other, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_rx_context(port.ep, 0, nullptr, &other, nullptr), -FI_ENOSYS);
  fid_mc* group = nullptr;
  ck_assert_int_eq(fi_join(port.ep, nullptr, 0, &group, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_barrier(port.ep, 0, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_control(&root.domain->fid, FI_BACKLOG, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_listen(reinterpret_cast<fid_pep*>(port.ep)), -FI_ENOSYS);
  ck_assert_int_eq(fi_shutdown(port.ep, 0), -FI_ENOSYS);
}

/// Every pointer of a table in libfabric 1.17, which calls them without a check.
template <typename Ops>
void check_table(const char* name, const Ops* ops, size_t known = sizeof(Ops)) {
  ck_assert_msg(ops && ops->size == sizeof(Ops), "%s", name);
  for (size_t at = sizeof(size_t); at < known; at += sizeof(void*)) {
    void* slot = nullptr;
    std::memcpy(&slot, reinterpret_cast<const char*>(ops) + at, sizeof(slot));
    ck_assert_msg(slot, "%s: byte %zu is null", name, at);
  }
}

void check_endpoint(const char* name, const fid_ep& ep) {
  check_table(name, ep.fid.ops);
  check_table(name, ep.ops);
  check_table(name, ep.cm);
  check_table(name, ep.msg);
  check_table(name, ep.tagged);
  check_table(name, ep.rma);
  check_table(name, ep.atomic);
  check_table(name, ep.collective);
}

/// One of each object; null: not opened.
struct Objects {
  explicit Objects(Root& root) : port(root) {
    fi_eq_attr eq_attr{};
    fi_wait_attr wait_attr{};
    fi_poll_attr poll_attr{};
    wait_attr.wait_obj = FI_WAIT_FD;
    struct fi_alias alias_of {
      &alias, FI_TRANSMIT
    };
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &disabled, nullptr), 0);
    ck_assert_int_eq(fi_control(&port.ep->fid, FI_ALIAS, &alias_of), 0);
    ck_assert_int_eq(fi_srx_context(root.domain, root.info->rx_attr, &srx, nullptr), 0);
    ck_assert_int_eq(fi_cntr_open(root.domain, nullptr, &cntr, nullptr), 0);
    ck_assert_int_eq(fi_eq_open(root.fabric, &eq_attr, &eq, nullptr), 0);
    ck_assert_int_eq(fi_poll_open(root.domain, &poll_attr, &poll), 0);
    ck_assert_int_eq(fi_wait_open(root.fabric, &wait_attr, &wait), 0);
    ck_assert_int_eq(fi_mr_reg(root.domain, this, 1, FI_REMOTE_READ, 0, 0, 0, &mr, nullptr), 0);
  }
  ~Objects() {
    for (fid_t object :
         {alias, &disabled->fid, &srx->fid, &cntr->fid, &eq->fid, &poll->fid, &wait->fid, &mr->fid})
      ck_assert_int_eq(fi_close(object), 0);
  }
  Port port;
  fid_t alias = nullptr;
  fid_ep *disabled = nullptr, *srx = nullptr;
  fid_cntr* cntr = nullptr;
  fid_eq* eq = nullptr;
  fid_poll* poll = nullptr;
  fid_wait* wait = nullptr;
  fid_mr* mr = nullptr;
};

TEST(every_slot_of_every_table_is_filled) {
  Root root(one_sided_ask());
  Objects all(root);
  check_endpoint("endpoint", *all.port.ep);
  check_endpoint("endpoint before fi_enable", *all.disabled);
  check_endpoint("alias", *reinterpret_cast<fid_ep*>(all.alias));
  check_endpoint("shared receive context", *all.srx);
  check_table("fabric", root.fabric->ops);
  check_table("domain", root.domain->ops);
  check_table("domain, memory", root.domain->mr);
  check_table("av", all.port.av->ops, 8 * sizeof(void*));
  check_table("cq", all.port.cq->ops);
  check_table("counter", all.cntr->ops);
  check_table("eq", all.eq->ops);
  check_table("poll set", all.poll->ops);
  check_table("wait set", all.wait->ops);
  for (fid_t object : {&root.fabric->fid, &root.domain->fid, &all.port.av->fid, &all.port.cq->fid,
                       &all.cntr->fid, &all.eq->fid, &all.poll->fid, &all.wait->fid, &all.mr->fid})
    check_table("fid", object->ops);
}

TEST(commands_and_operations_that_no_object_has_are_enosys) {
  Root root(one_sided_ask());
  Objects all(root);
  for (fid_t object :
       {&root.fabric->fid, &root.domain->fid, &all.port.ep->fid, &all.disabled->fid, all.alias,
        &all.srx->fid, &all.port.av->fid, &all.port.cq->fid, &all.cntr->fid, &all.eq->fid,
        &all.poll->fid, &all.wait->fid, &all.mr->fid}) {
    uint64_t argument[16] = {};
    void* ops = argument;
    ck_assert_int_eq(fi_control(object, 9999, argument), -FI_ENOSYS);
    ck_assert_int_eq(fi_open_ops(object, "no such operations", 0, &ops, nullptr), -FI_ENOSYS);
    ck_assert_int_eq(fi_set_ops(object, "no such operations", 0, &ops, nullptr), -FI_ENOSYS);
  }
  uint8_t raw[8];
  const iovec iov{raw, sizeof(raw)};
  ck_assert_int_eq(fi_mr_refresh(all.mr, &iov, 1, 0), -FI_ENOSYS);
  fid_av_set* set = nullptr;
  fi_av_set_attr set_attr{};
  ck_assert_int_eq(fi_av_set(all.port.av, &set_attr, &set, nullptr), -FI_ENOSYS);
}

TEST(flags_that_mean_nothing_here_are_refused) {
  OneSidedPorts ports;
  char bytes[8] = {};
  const iovec iov{bytes, 8};
  const fi_rma_iov remote{ports.at(0), 8, ports.region.key()};
  const fi_msg_rma rma{&iov, nullptr, 1, ports.address, &remote, 1, nullptr, 0};
  const fi_msg message{&iov, nullptr, 1, ports.address, nullptr, 0};
  const fi_msg_tagged tagged{&iov, nullptr, 1, ports.address, 0, 0, nullptr, 0};
  const fi_ioc operand{bytes, 1};
  const fi_rma_ioc target{ports.at(0), 1, ports.region.key()};
  const fi_msg_atomic atomic{&operand, nullptr,   1,      ports.address, &target,
                             1,        FI_UINT64, FI_SUM, nullptr,       0};
  for (const uint64_t flag : {uint64_t{FI_TRIGGER}, uint64_t{FI_COMMIT_COMPLETE}}) {
    ck_assert_int_eq(fi_writemsg(ports.a.ep, &rma, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_readmsg(ports.a.ep, &rma, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_sendmsg(ports.a.ep, &message, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_tsendmsg(ports.a.ep, &tagged, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_atomicmsg(ports.a.ep, &atomic, flag), -FI_EBADFLAGS);
  }
}

TEST(address_vectors_refuse_each_attribute_in_a_line_of_its_own) {
  Root root(one_sided_ask());
  fid_av* av = nullptr;
  fi_av_attr scalable{}, shared{};
  scalable.rx_ctx_bits = 1;
  shared.name = "av";
  for (int i = 0; i < 100; ++i)
    ck_assert_int_eq(fi_av_open(root.domain, &scalable, &av, nullptr), -FI_EINVAL);
  ck_assert(contains(g_log.back().text, "there are no scalable endpoints"));
  ck_assert_int_eq(fi_av_open(root.domain, &shared, &av, nullptr), -FI_ENOSYS);
  ck_assert(contains(g_log.back().text, "named (shared) address vectors"));
}

TEST(an_endpoint_with_a_shared_transmit_context_is_refused) {
  Root root(one_sided_ask());
  fi_info* const info = fi_dupinfo(root.info);
  fid_ep* ep = nullptr;
  info->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
  ck_assert_int_ne(fi_endpoint(root.domain, info, &ep, nullptr), 0);
  ck_assert_ptr_null(ep);
  fi_freeinfo(info);
}

}  // namespace
