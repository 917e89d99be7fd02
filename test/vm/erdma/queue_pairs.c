// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Commands that make, connect and destroy queue pairs. */
#include "inside.h"

#define LOG_MOST_BLOCKS 15 /* indices have 16 bits */

void erm_qp_drop(struct erm_qp* qp) {
  struct erm_device* device = qp->device;

  erm_qp_unlink(qp);
  device->qp[qp->qpn] = NULL;
  qp->next->previous = qp->previous;
  qp->previous->next = qp->next;
  if (device->qps == qp) device->qps = qp->next == qp ? NULL : qp->next;
  erm_release(qp);
}

static bool init_queue(struct erm_device* device, struct erm_queue* queue, uint32_t shape,
                       uint32_t place, uint32_t pages, uint64_t ring, uint64_t record) {
  uint32_t log_depth = ERM_GET(ERM_QP_LOG_DEPTH, shape);

  if (log_depth > LOG_MOST_BLOCKS || !erm_memory(device, record, 8, 8)) return false;
  queue->cqn = ERM_GET(ERM_QP_CQN, place);
  queue->depth = 1u << log_depth;
  queue->record = record;
  queue->pages = (struct erm_pages){
      .address = {ring},
      .offset = pages & ERM_QP_OFFSET,
      .count = ERM_GET(ERM_QP_PAGES, pages),
      .shift = ERM_GET(ERM_QP_PAGE_SHIFT, place) + 12,
      .table = ERM_GET(ERM_QP_TABLE, pages),
  };
  return queue->cqn < device->most_cqs && device->cq[queue->cqn];
}

static bool init(struct erm_qp* qp, const struct erm_create_qp* request) {
  qp->qpn = ERM_GET(ERM_QP_NUMBER, request->sq_shape);
  qp->pd = ERM_GET(ERM_QP_PD, request->rq_shape);
  return qp->qpn < qp->device->most_qps && !qp->device->qp[qp->qpn] &&
         init_queue(qp->device, &qp->sq, request->sq_shape, request->sq_place, request->sq_pages,
                    request->sq_ring, request->sq_record) &&
         init_queue(qp->device, &qp->rq, request->rq_shape, request->rq_place, request->rq_pages,
                    request->rq_ring, request->rq_record);
}

uint8_t erm_qp_create(struct erm_device* device, const struct erm_create_qp* request,
                      uint64_t* cookie) {
  struct erm_qp *qp = erm_allocate(1, sizeof(*qp)), *first = device->qps;

  if (!qp) return ERM_GENERAL;
  qp->device = device;
  if (!init(qp, request)) {
    erm_release(qp);
    return ERM_GENERAL;
  }
  qp->cookie = ++device->network->cookies;
  *cookie = ERM_PUT(ERM_QP_COOKIE, qp->cookie);
  qp->next = first ? first : qp;
  qp->previous = first ? first->previous : qp;
  qp->next->previous = qp->previous->next = qp;
  if (!first) device->qps = qp;
  device->qp[qp->qpn] = qp;
  return ERM_SUCCESS;
}

uint8_t erm_qp_destroy(struct erm_device* device, uint32_t qpn) {
  if (qpn >= device->most_qps || !device->qp[qpn]) return ERM_GENERAL;
  erm_qp_drop(device->qp[qpn]);
  return ERM_SUCCESS;
}

void erm_qp_unlink(struct erm_qp* qp) {
  if (qp->peer) qp->peer->peer = NULL;
  qp->peer = NULL;
}

/* Peers name each other by the numbers that CREATE_QP gave them and the connection managers
 * exchanged. */
static bool are_peers(const struct erm_qp* a, const struct erm_qp* b) {
  return a != b && b->state == ERM_RTS && !b->linked && a->cookie == b->peer_cookie &&
         b->cookie == a->peer_cookie;
}

static void link_pair(struct erm_qp* a, struct erm_qp* b) {
  if (a->own_ip != b->peer_ip || a->peer_ip != b->own_ip || a->own_port != b->peer_port ||
      a->peer_port != b->own_port)
    erm_say(a->device, "cookies agree, addresses do not: QPs and ports", a->qpn, b->qpn,
            a->own_port, b->own_port);
  a->peer = b;
  b->peer = a;
  a->linked = b->linked = true;
}

/* Two ends find each other once both are in RTS. */
static void find_peer(struct erm_qp* qp) {
  int i;

  for (i = 0; i < ERM_MAX_DEVICES && !qp->linked; i++) {
    struct erm_device* device = qp->device->network->devices[i];
    struct erm_qp *first = device ? device->qps : NULL, *other = first;

    while (other && !qp->linked) {
      if (are_peers(qp, other)) link_pair(qp, other);
      other = other->next == first ? NULL : other->next;
    }
  }
}

uint8_t erm_qp_modify(struct erm_device* device, const struct erm_modify_qp* request) {
  uint32_t qpn = ERM_GET(ERM_TARGET_QPN, request->target);
  uint32_t state = ERM_GET(ERM_TARGET_STATE, request->target);
  struct erm_qp* qp = qpn < device->most_qps ? device->qp[qpn] : NULL;

  if (!qp || state > ERM_ERROR || (state == ERM_RTS && qp->state >= ERM_RTS)) return ERM_GENERAL;
  if (state != ERM_RTS) {
    erm_qp_stop(qp, state);
    return ERM_SUCCESS;
  }
  qp->peer_cookie = request->cookie;
  qp->own_ip = request->own_ip;
  qp->peer_ip = request->peer_ip;
  qp->own_port = request->own_port;
  qp->peer_port = request->peer_port;
  qp->state = state;
  qp->linked = false;
  find_peer(qp);
  return ERM_SUCCESS;
}
