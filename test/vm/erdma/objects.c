// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Commands that make and destroy completion queues and memory regions. */
#include "inside.h"

bool erm_objects_create(struct erm_device* device) {
  device->most_qps = ERM_QPS_PER_BLOCK * device->config->qblocks;
  device->most_cqs = device->most_mrs = 2 * device->most_qps;
  device->qp = erm_allocate(device->most_qps, sizeof(*device->qp));
  device->cq = erm_allocate(device->most_cqs, sizeof(*device->cq));
  device->mr = erm_allocate(device->most_mrs, sizeof(*device->mr));
  return device->qp && device->cq && device->mr;
}

static void drop_cq(struct erm_device* device, struct erm_cq* cq) {
  device->cq[cq->cqn] = NULL;
  cq->next->previous = cq->previous;
  cq->previous->next = cq->next;
  if (device->cqs == cq) device->cqs = cq->next == cq ? NULL : cq->next;
  erm_release(cq);
}

void erm_objects_drop(struct erm_device* device) {
  while (device->qps) erm_qp_drop(device->qps);
  while (device->cqs) drop_cq(device, device->cqs);
  if (device->mr) memset(device->mr, 0, device->most_mrs * sizeof(*device->mr));
  device->mrs = 0;
}

void erm_objects_destroy(struct erm_device* device) {
  erm_objects_drop(device);
  erm_release(device->qp);
  erm_release(device->cq);
  erm_release(device->mr);
}

/* A single page is named inline, whatever the type says. */
static struct erm_pages cq_pages(const struct erm_create_cq* request) {
  uint32_t count = ERM_GET(ERM_CQ_PAGES, request->place);

  return (struct erm_pages){
      .address = {request->ring_low | (uint64_t)request->ring_high << 32},
      .offset = request->offset,
      .count = count,
      .shift = ERM_GET(ERM_CQ_PAGE_SHIFT, request->shape) + 12,
      .table = count > 1,
  };
}

static bool cq_may_be(struct erm_device* device, const struct erm_create_cq* request) {
  uint32_t cqn = ERM_GET(ERM_CQ_NUMBER, request->shape);
  uint32_t eqn = ERM_GET(ERM_CQ_EQN, request->place);

  return cqn < device->most_cqs && !device->cq[cqn] && eqn && eqn < ERM_MAX_VECTORS &&
         device->ceq[eqn].ring &&
         ERM_GET(ERM_CQ_LOG_DEPTH, request->shape) <= device->config->log_most_cqes &&
         erm_memory(device, request->record, 8, 8);
}

uint8_t erm_cq_create(struct erm_device* device, const struct erm_create_cq* request) {
  struct erm_cq *cq, *first = device->cqs;

  if (!cq_may_be(device, request)) return ERM_GENERAL;
  cq = erm_allocate(1, sizeof(*cq));
  if (!cq) return ERM_GENERAL;
  cq->cqn = ERM_GET(ERM_CQ_NUMBER, request->shape);
  cq->eqn = ERM_GET(ERM_CQ_EQN, request->place);
  cq->depth = 1u << ERM_GET(ERM_CQ_LOG_DEPTH, request->shape);
  cq->pages = cq_pages(request);
  cq->record = request->record;
  cq->next = first ? first : cq;
  cq->previous = first ? first->previous : cq;
  cq->next->previous = cq->previous->next = cq;
  if (!first) device->cqs = cq;
  device->cq[cq->cqn] = cq;
  return ERM_SUCCESS;
}

uint8_t erm_cq_destroy(struct erm_device* device, uint32_t cqn) {
  if (cqn >= device->most_cqs || !device->cq[cqn]) return ERM_GENERAL;
  drop_cq(device, device->cq[cqn]);
  return ERM_SUCCESS;
}

static struct erm_pages mr_pages(const struct erm_register_mr* request) {
  struct erm_pages pages = {
      .count = ERM_GET(ERM_MR_PAGES, request->place),
      .shift = ERM_GET(ERM_MR_PAGE_SHIFT, request->place),
      .table = ERM_GET(ERM_MR_TABLE, request->place),
  };

  memcpy(pages.address, request->pages, sizeof(pages.address));
  pages.offset = request->start & ((1ULL << pages.shift) - 1);
  return pages;
}

/* The driver sets the valid bit only for regions of users. Its own regions are valid, too. */
uint8_t erm_mr_register(struct erm_device* device, const struct erm_register_mr* request) {
  uint32_t index = ERM_GET(ERM_MR_INDEX, request->name);
  uint32_t type = ERM_GET(ERM_MR_TYPE, request->rights);
  struct erm_mr* mr = index < device->most_mrs ? &device->mr[index] : NULL;

  if (!mr || mr->valid || (device->config->max_mr && device->mrs >= device->config->max_mr) ||
      (type == ERM_MR_NORMAL && (request->size > 1ULL << device->config->log_largest_mr ||
                                 ERM_GET(ERM_MR_PAGE_SHIFT, request->place) < 12)))
    return ERM_GENERAL;
  *mr = (struct erm_mr){
      .valid = ERM_GET(ERM_MR_VALID, request->name) || type,
      .key = ERM_GET(ERM_MR_KEY, request->name),
      .pd = ERM_GET(ERM_MR_PD, request->rights),
      .rights = ERM_GET(ERM_MR_RIGHTS, request->rights),
      .dma = type == ERM_MR_DMA,
  };
  if (type == ERM_MR_NORMAL) {
    mr->start = request->start;
    mr->size = request->size;
    mr->pages = mr_pages(request);
  }
  device->mrs += mr->valid;
  return ERM_SUCCESS;
}

uint8_t erm_mr_deregister(struct erm_device* device, uint32_t name) {
  uint32_t index = ERM_GET(ERM_MR_INDEX, name);

  if (index >= device->most_mrs || !device->mr[index].valid ||
      device->mr[index].key != ERM_GET(ERM_MR_KEY, name))
    return ERM_GENERAL;
  device->mr[index].valid = false;
  device->mrs--;
  return ERM_SUCCESS;
}
