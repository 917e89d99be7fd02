// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Completions, events about them, and interrupts. */
#include "inside.h"

bool erm_eq_create(struct erm_device* device, struct erm_eq* eq, uint64_t ring, uint32_t depth) {
  if (!depth || depth & (depth - 1) || depth > ERM_EQ_DOORBELL_CI) return false;
  if (!erm_memory(device, ring, (uint64_t)depth * ERM_EVENT, ERM_EVENT)) return false;
  eq->ring = ring;
  eq->depth = depth;
  eq->pi = 0;
  eq->raised = false;
  return true;
}

static uint32_t seen_by_host(struct erm_device* device, const struct erm_eq* eq) {
  return ERM_GET(ERM_EQ_DOORBELL_CI, device->hooks->read_doorbell(device->context, eq->doorbell));
}

/* The reader takes an entry if its owner bit differs from the parity of the lap. */
void erm_eq_push(struct erm_device* device, struct erm_eq* eq, uint64_t event) {
  uint32_t waiting = (eq->pi - seen_by_host(device, eq)) & ERM_EQ_DOORBELL_CI;
  uint64_t at = (uint64_t)(eq->pi & (eq->depth - 1)) * ERM_EVENT;
  uint64_t* entry = eq->ring ? erm_memory(device, eq->ring + at, ERM_EVENT, ERM_EVENT) : NULL;

  if (!entry || waiting >= eq->depth) {
    erm_say(device, "event lost, event queue of vector", eq->vector, event, waiting, eq->depth);
    return;
  }
  entry[1] = 0;
  erm_store(entry, event | (eq->pi & eq->depth ? 0 : ERM_EVENT_OWNER));
  eq->pi++;
}

/* Raises one interrupt for each time that the driver armed the queue. It comes at once if there are
 * events that the driver has not seen, as its handlers return after 16. A new queue counts as
 * armed, as the driver does not arm it. The model reads the doorbells, not the records with the
 * same content in the driver's memory: the driver frees the records right after it has written the
 * reset. */
void erm_eq_serve(struct erm_device* device, struct erm_eq* eq) {
  uint64_t doorbell = device->hooks->read_doorbell(device->context, eq->doorbell);

  if (ERM_GET(ERM_EQ_DOORBELL_CI, doorbell) == (eq->pi & ERM_EQ_DOORBELL_CI)) return;
  if (eq->raised && (doorbell == eq->raised_for || !(doorbell & ERM_EQ_DOORBELL_ARMED))) return;
  eq->raised = true;
  eq->raised_for = doorbell;
  device->hooks->raise(device->context, eq->vector);
}

void erm_asynchronous(struct erm_device* device, uint32_t type, uint32_t number) {
  if (device->config->aeq)
    erm_eq_push(device, &device->aeq,
                ERM_PUT(ERM_EVENT_TYPE, type) | ERM_PUT(ERM_EVENT_NUMBER, number));
}

/* The model cannot see that a CQ overruns, as liberdma writes the record when it arms the CQ, not
 * when it polls. */
void erm_complete(struct erm_device* device, const struct erm_done* done) {
  struct erm_cq* cq = done->cqn < device->most_cqs ? device->cq[done->cqn] : NULL;
  struct erm_completion* entry = cq ? erm_block(device, &cq->pages, cq->pi, cq->depth) : NULL;

  if (!entry) {
    erm_say(device, "completion lost, CQ", done->cqn, done->qpn, done->index, done->syndrome);
    return;
  }
  entry->index = __builtin_bswap32(done->index);
  entry->qpn = __builtin_bswap32(done->qpn);
  entry->data = done->data;
  entry->size = __builtin_bswap32(done->size);
  erm_store_half(&entry->header,
                 __builtin_bswap32((uint32_t)(ERM_PUT(ERM_CQE_OPCODE, done->opcode) |
                                              ERM_PUT(ERM_CQE_QUEUE, done->queue) |
                                              ERM_PUT(ERM_CQE_SYNDROME, done->syndrome) |
                                              (cq->pi & cq->depth ? 0 : ERM_CQE_OWNER))));
  cq->pi++;
  if (done->solicited || done->syndrome) cq->solicited = cq->pi;
}

/* Returns true if the counts continue those of the last arming. The first arming counts from 0. */
static bool new_arming(struct erm_device* device, struct erm_cq* cq, uint64_t record) {
  uint64_t counts = record & (ERM_CQ_DOORBELL_COUNT | ERM_CQ_DOORBELL_EVENTS);

  if (record == cq->served) return false;
  return !device->config->strict_arm || counts != cq->counts;
}

/* Returns how far `index` is beyond `seen`, for 24-bit indices. */
static int32_t beyond(uint32_t index, uint32_t seen) {
  return (int32_t)((index - seen) << 8);
}

/* Sends one event for each arming, at once if there are completions that the host had not seen. */
bool erm_cq_serve(struct erm_device* device, struct erm_cq* cq) {
  const uint64_t* where = erm_memory(device, cq->record, 8, 8);
  uint64_t record = where ? erm_load(where) : 0;
  uint32_t seen = ERM_GET(ERM_CQ_DOORBELL_CI, record);

  /* Until liberdma clears the record, it may hold the value of another CQ. */
  if (ERM_GET(ERM_CQ_DOORBELL_CQN, record) != cq->cqn || !(record & ERM_CQ_DOORBELL_ARMED))
    return false;
  if (!new_arming(device, cq, record)) return false;
  if (record & ERM_CQ_DOORBELL_SOLICITED ? beyond(cq->solicited, seen) <= 0 : !beyond(cq->pi, seen))
    return false;
  cq->served = record;
  cq->counts = record & (ERM_CQ_DOORBELL_COUNT | ERM_CQ_DOORBELL_EVENTS);
  erm_eq_push(device, &device->ceq[cq->eqn],
              ERM_PUT(ERM_EVENT_CQN, cq->cqn) | ERM_PUT(ERM_EVENT_CQ_PI, cq->pi));
  return true;
}
