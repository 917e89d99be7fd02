// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* The ends of work requests and queue pairs: completions, flushes and asynchronous events. */
#include "inside.h"

/* Ends the first work request of the send queue. An unsignalled one has a completion only if it
 * failed. */
void erm_sent(struct erm_qp* qp, const struct erm_request* request, uint8_t syndrome) {
  if (syndrome || request->header & ERM_WORK_SIGNALLED)
    erm_complete(qp->device, &(struct erm_done){.queue = ERM_OF_SENDS,
                                                .opcode = request->opcode,
                                                .syndrome = syndrome,
                                                .index = qp->sq.ci,
                                                .cqn = qp->sq.cqn,
                                                .qpn = qp->qpn,
                                                .size = syndrome ? 0 : request->length});
  qp->sq.ci = (uint16_t)(qp->sq.ci + request->block_count);
  qp->done = 0;
  qp->begun = false;
  if (qp->device->config->trace)
    erm_say(qp->device, "work request", qp->qpn, request->opcode, request->length, syndrome);
  if (syndrome) erm_qp_fail(qp);
}

/* Ends the first receive, with a syndrome if `request` did not arrive. */
void erm_received(struct erm_qp* qp, const struct erm_request* request, uint8_t syndrome) {
  struct erm_done done = {.queue = ERM_OF_RECEIVES,
                          .opcode = ERM_RECEIVED,
                          .syndrome = syndrome,
                          .index = qp->rq.ci,
                          .cqn = qp->rq.cqn,
                          .qpn = qp->qpn};

  if (!syndrome) {
    done.opcode = request->received;
    done.solicited = request->header & ERM_WORK_SOLICITED;
    /* Requests and completions have different byte orders. */
    done.data = __builtin_bswap32(request->blocks.common.data);
    done.size = request->length;
  }
  erm_complete(qp->device, &done);
  qp->rq.ci++;
}

static bool flush_receives(struct erm_qp* qp) {
  uint16_t count = erm_receives_waiting(qp), i;

  for (i = 0; i < count; i++) erm_received(qp, NULL, ERM_FLUSHED);
  return count != 0;
}

/* Flushes the first work request, and returns how many of the waiting blocks it had. */
static uint16_t flush_send(struct erm_qp* qp, uint16_t waiting) {
  const uint64_t* header = erm_block(qp->device, &qp->sq.pages, qp->sq.ci, qp->sq.depth);
  uint16_t blocks = header ? (uint16_t)(ERM_GET(ERM_WORK_BLOCKS, *header) + 1) : waiting;

  if (header)
    erm_complete(qp->device, &(struct erm_done){.queue = ERM_OF_SENDS,
                                                .opcode = ERM_GET(ERM_WORK_OPCODE, *header),
                                                .syndrome = ERM_FLUSHED,
                                                .index = qp->sq.ci,
                                                .cqn = qp->sq.cqn,
                                                .qpn = qp->qpn});
  if (blocks > waiting) blocks = waiting;
  qp->sq.ci = (uint16_t)(qp->sq.ci + blocks);
  return blocks;
}

/* Flushes the waiting requests of a QP in error, and those that are posted later. */
bool erm_qp_flush(struct erm_qp* qp) {
  unsigned int flush = qp->device->config->flush;
  uint16_t waiting;
  bool did = flush >= 1 && flush_receives(qp);

  if (flush < 2) return did;
  waiting = erm_sends_waiting(qp);
  if (waiting > qp->sq.depth) return did;
  for (; waiting; did = true) waiting = (uint16_t)(waiting - flush_send(qp, waiting));
  return did;
}

void erm_qp_stop(struct erm_qp* qp, uint32_t state) {
  erm_qp_unlink(qp);
  qp->state = state;
  qp->done = 0;
  qp->begun = false;
}

void erm_qp_fail(struct erm_qp* qp) {
  erm_asynchronous(qp->device, ERM_QP_FATAL, qp->qpn);
  erm_qp_stop(qp, ERM_ERROR);
}
