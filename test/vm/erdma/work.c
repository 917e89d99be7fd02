// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Transfers of work requests between two QPs. */
#include "inside.h"

#define CHUNK 65536u /* bytes of one work request in one round, so that other QPs can go on */

/* Returns the remote syndrome for a local one. */
static uint8_t at_receiver(uint8_t bad) {
  return (uint8_t)(bad - ERM_LOCAL_TO_REMOTE);
}

/* Ends a request that the peer refuses. `bad` is the syndrome at the peer. */
static void denied(struct erm_qp* qp, const struct erm_request* request, uint8_t bad) {
  struct erm_qp* peer = qp->peer;

  erm_sent(qp, request, qp->device->config->denied ? ERM_RETRIES_EXCEEDED : at_receiver(bad));
  erm_qp_fail(peer);
}

static void no_receive(struct erm_qp* qp, const struct erm_request* request) {
  struct erm_qp* peer = qp->peer;

  erm_say(peer->device, "no receive is posted: QP", peer->qpn, qp->qpn, request->length, 0);
  erm_sent(qp, request, ERM_RETRIES_EXCEEDED);
  if (qp->device->config->rnr == 0) erm_qp_fail(peer);
}

/* Invalidates a key of the receiver that the sender names. */
static bool invalidate(struct erm_qp* peer, uint32_t key) {
  struct erm_device* device = peer->device;
  struct erm_mr* mr = key >> 8 < device->most_mrs ? &device->mr[key >> 8] : NULL;

  if (!mr || !mr->valid || mr->key != (key & 0xff) || mr->pd != peer->pd) return false;
  mr->valid = false;
  device->mrs--;
  return true;
}

static void delivered(struct erm_qp* qp, const struct erm_request* request) {
  struct erm_qp* peer = qp->peer;

  if (request->opcode == ERM_SEND_INVALIDATE && !invalidate(peer, request->blocks.common.data)) {
    denied(qp, request, ERM_LOCAL_KEY);
    return;
  }
  if (request->takes) erm_received(peer, request, ERM_SUCCESS);
  erm_sent(qp, request, ERM_SUCCESS);
}

static void move(struct erm_qp* qp, const struct erm_request* request) {
  const struct erm_side* to = request->reads ? &request->local : &request->remote;
  const struct erm_side* from = request->reads ? &request->remote : &request->local;
  uint64_t left = request->length - qp->done;
  uint32_t now = left < CHUNK ? (uint32_t)left : CHUNK;

  if (!erm_copy(to, from, qp->done, now)) {
    erm_sent(qp, request, ERM_GENERAL);
    return;
  }
  qp->done += now;
  if (qp->done == request->length) delivered(qp, request);
}

/* Checks the memory at the peer. Returns 0 or a syndrome. */
static uint8_t check_remote(const struct erm_request* request) {
  uint64_t space;
  uint8_t bad = erm_check_side(&request->remote, &space);

  return !bad && space < request->length ? ERM_LOCAL_RANGE : bad;
}

static uint8_t check_local(const struct erm_request* request) {
  uint64_t length;
  uint8_t bad = erm_check_side(&request->local, &length);

  return !bad && length != request->length ? ERM_BAD_REQUEST : bad;
}

/* Executes the request. Returns false if it waits for a receive. */
static bool execute(struct erm_qp* qp, struct erm_request* request) {
  struct erm_qp* peer = qp->peer;
  const struct erm_receive* receive = request->takes ? erm_receive_first(peer) : NULL;
  uint8_t bad = check_local(request);

  if (bad) {
    erm_sent(qp, request, bad);
    return true;
  }
  if (request->takes && !receive) {
    if (qp->device->config->rnr == 1) return false;
    no_receive(qp, request);
    return true;
  }
  request->remote.device = peer->device;
  request->remote.pd = peer->pd;
  if (request->sends)
    request->remote.part[0] = (struct erm_part){receive->address, receive->length, receive->key};
  bad = check_remote(request);
  if (bad) {
    if (request->sends) erm_received(peer, request, at_receiver(bad));
    denied(qp, request, bad);
    return true;
  }
  move(qp, request);
  return true;
}

/* Returns true once the first work request has taken its time. */
static bool due(struct erm_qp* qp) {
  const struct erm_config* config = qp->device->config;
  uint64_t now = qp->device->hooks->now(qp->device->context);

  if (!qp->begun) {
    qp->begun = true;
    qp->due = now + config->delay_us;
    qp->lost = config->loss && ++qp->device->works % config->loss == 0;
  }
  return now >= qp->due;
}

/* Passes a QP over at random, as QPs are not ordered among each other. */
static bool passed_over(struct erm_qp* qp) {
  uint32_t* random = &qp->device->network->random;

  *random = *random * 1664525u + 1013904223u;
  if (qp->passed_over < qp->device->config->late && *random >> 31) {
    qp->passed_over++;
    return true;
  }
  qp->passed_over = 0;
  return false;
}

static bool step(struct erm_qp* qp) {
  struct erm_request request;

  /* The peer may not exist yet, or no longer. */
  if (!erm_sends_waiting(qp) || (!qp->peer && !qp->linked)) return false;
  if (passed_over(qp)) return true;
  if (!due(qp)) return false;
  if (!erm_request_fetch(qp, &request)) {
    erm_sent(qp, &request, ERM_BAD_REQUEST);
    return true;
  }
  if (!qp->peer || qp->lost) {
    erm_sent(qp, &request, ERM_RETRIES_EXCEEDED);
    return true;
  }
  return execute(qp, &request);
}

bool erm_work_step(struct erm_device* device) {
  struct erm_qp* qp;
  bool did = false;

  for (qp = device->qps; qp; qp = qp->next == device->qps ? NULL : qp->next) {
    if (qp->state == ERM_RTS)
      did |= step(qp);
    else if (qp->state > ERM_RTS)
      did |= erm_qp_flush(qp);
  }
  return did;
}
