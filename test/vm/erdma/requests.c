// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Counts the waiting work requests, and parses the first one. */
#include "inside.h"

/* A record with another QP's number is left from an earlier owner of the memory. */
static uint64_t record_of(struct erm_qp* qp, const struct erm_queue* queue, uint64_t qpn_field) {
  const uint64_t* where = erm_memory(qp->device, queue->record, 8, 8);
  uint64_t record = where ? erm_load(where) : 0;

  return where && ERM_GET(qpn_field, record) == qp->qpn ? record : queue->ci;
}

uint16_t erm_sends_waiting(struct erm_qp* qp) {
  uint64_t record = record_of(qp, &qp->sq, ERM_SQ_DOORBELL_QPN);

  return (uint16_t)(ERM_GET(ERM_QUEUE_DOORBELL_PI, record) - qp->sq.ci);
}

uint16_t erm_receives_waiting(struct erm_qp* qp) {
  uint64_t record = record_of(qp, &qp->rq, ERM_RQ_DOORBELL_QPN);
  uint16_t waiting = (uint16_t)(ERM_GET(ERM_QUEUE_DOORBELL_PI, record) - qp->rq.ci);

  return waiting > qp->rq.depth ? 0 : waiting;
}

const struct erm_receive* erm_receive_first(struct erm_qp* qp) {
  return erm_receives_waiting(qp) ? erm_block(qp->device, &qp->rq.pages, qp->rq.ci, qp->rq.depth)
                                  : NULL;
}

static uint64_t sink(const struct erm_work_request* common) {
  return common->sink_low | (uint64_t)common->sink_high << 32;
}

/* Parses the source of a send: bytes in the request or parts, which begin at `at`. */
static bool parse_local(struct erm_request* request, uint32_t at) {
  struct erm_side* local = &request->local;
  uint32_t bytes = request->block_count * ERM_BLOCK - at, i;

  if (request->header & ERM_WORK_INLINE) {
    local->bytes = request->blocks.bytes + at;
    local->parts = 1;
    local->part[0].length = request->length;
    return request->length <= bytes;
  }
  local->parts = (uint32_t)ERM_GET(ERM_WORK_PARTS, request->header);
  if (local->parts > ERM_MOST_PARTS || local->parts * sizeof(struct erm_sge) > bytes) return false;
  for (i = 0; i < local->parts; i++) {
    struct erm_sge sge;

    memcpy(&sge, request->blocks.bytes + at + i * sizeof(sge), sizeof(sge));
    local->part[i] = (struct erm_part){sge.address, sge.length, sge.key};
  }
  return true;
}

static bool parse_send(struct erm_request* request) {
  request->sends = request->takes = true;
  request->received = request->opcode == ERM_SEND       ? ERM_RECEIVED
                      : request->opcode == ERM_SEND_IMM ? ERM_RECEIVED_SEND_IMM
                                                        : ERM_RECEIVED_INVALIDATE;
  request->remote.rights = ERM_LOCAL_WRITE;
  return parse_local(request, ERM_SEND_PARTS_AT);
}

static bool parse_write(struct erm_request* request) {
  const struct erm_work_request* common = &request->blocks.common;

  request->takes = request->opcode == ERM_WRITE_IMM;
  request->received = ERM_RECEIVED_WRITE_IMM;
  request->remote.rights = ERM_REMOTE_WRITE;
  request->remote.part[0] = (struct erm_part){sink(common), request->length, common->sink_key};
  return parse_local(request, ERM_WRITE_PARTS_AT);
}

/* On iWARP, the bytes of a READ arrive as a write to the local key, which therefore needs the right
 * to be written. */
static bool parse_read(struct erm_request* request) {
  const struct erm_work_request* common = &request->blocks.common;
  struct erm_sge source;

  memcpy(&source, request->blocks.bytes + ERM_BLOCK, sizeof(source));
  request->reads = true;
  request->remote.rights = ERM_REMOTE_READ;
  request->remote.part[0] = (struct erm_part){source.address, request->length, source.key};
  request->local.rights = ERM_LOCAL_WRITE | ERM_REMOTE_WRITE;
  request->local.parts = 1;
  request->local.part[0] = (struct erm_part){sink(common), request->length, common->sink_key};
  return request->block_count > 1;
}

static bool parse(struct erm_request* request) {
  switch (request->opcode) {
    case ERM_SEND:
    case ERM_SEND_IMM:
    case ERM_SEND_INVALIDATE:
      return parse_send(request);
    case ERM_WRITE:
    case ERM_WRITE_IMM:
      return parse_write(request);
    case ERM_READ:
      return parse_read(request);
    default:
      return false;
  }
}

static bool fetch_blocks(struct erm_qp* qp, struct erm_request* request, uint16_t waiting) {
  uint32_t count = 1, i;

  for (i = 0; i < count; i++) {
    const void* block = erm_block(qp->device, &qp->sq.pages, (uint32_t)qp->sq.ci + i, qp->sq.depth);

    if (!block) return false;
    memcpy(request->blocks.bytes + (size_t)i * ERM_BLOCK, block, ERM_BLOCK);
    if (!i) count = (uint32_t)ERM_GET(ERM_WORK_BLOCKS, request->blocks.common.header) + 1;
    if (count > ERM_MOST_BLOCKS || count > waiting) return false;
  }
  request->block_count = count;
  return true;
}

/* Parses the first request. Returns false if it is invalid; it then counts as one block. */
bool erm_request_fetch(struct erm_qp* qp, struct erm_request* request) {
  uint16_t waiting = erm_sends_waiting(qp);

  memset(request, 0, sizeof(*request));
  request->block_count = 1;
  if (waiting > qp->sq.depth || !fetch_blocks(qp, request, waiting)) return false;
  request->header = request->blocks.common.header;
  request->opcode = ERM_GET(ERM_WORK_OPCODE, request->header);
  request->length = request->blocks.common.length;
  request->local.device = qp->device;
  request->local.pd = qp->pd;
  request->local.rights = ERM_LOCAL_READ;
  request->remote.parts = 1;
  return parse(request);
}
