/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Internal types and functions of the model. One thread runs it for all devices of a network, so
 * there are no locks. */
#pragma once

#include "layout.h"
#include "model.h"
#include "port.h"

/* Memory of the host in pages, with their addresses inline or in a table of the host. */
struct erm_pages {
  uint64_t address[4]; /* of a table: address[0] */
  uint64_t offset;     /* in the first page */
  uint32_t count, shift;
  bool table;
};

struct erm_eq {
  uint64_t ring; /* 0 = there is none */
  uint32_t doorbell, depth, pi;
  unsigned int vector;
  bool raised;         /* true once an interrupt was raised */
  uint64_t raised_for; /* the doorbell that the last interrupt answered */
};

struct erm_cq {
  struct erm_cq *next, *previous;
  struct erm_pages pages;
  uint64_t record;
  uint64_t served;    /* the record that the last event answered; 0 = none */
  uint64_t counts;    /* counts of the last arming that was served */
  uint32_t solicited; /* producer index after the last solicited completion */
  uint32_t cqn, eqn, depth, pi;
};

/* A queue of a QP. It has the number of its CQ, as a broken driver may destroy the CQ first. */
struct erm_queue {
  struct erm_pages pages;
  uint64_t record;
  uint32_t depth, cqn;
  uint16_t ci;
};

struct erm_mr {
  struct erm_pages pages;
  uint64_t start, size;
  uint32_t pd, key, rights;
  bool valid, dma;
};

struct erm_qp {
  struct erm_qp *next, *previous;
  struct erm_device* device;
  struct erm_qp* peer;
  struct erm_queue sq, rq;
  uint64_t done; /* bytes moved of the first work request of sq */
  uint64_t due;  /* time when that request may be done */
  bool begun;    /* `due` is set */
  uint32_t qpn, pd, cookie, peer_cookie;
  uint32_t own_ip, peer_ip;
  uint16_t own_port, peer_port;
  unsigned int passed_over; /* number of rounds in which it was passed over */
  uint32_t state;
  bool linked; /* once: a QP whose peer is gone stays so */
  bool lost;   /* the first work request of sq */
};

struct erm_network {
  struct erm_device* devices[ERM_MAX_DEVICES];
  uint32_t cookies, random;
};

struct erm_device {
  struct erm_network* network;
  const struct erm_hooks* hooks;
  void* context;
  const struct erm_config* config;
  bool up, in_reset;
  bool broken; /* the command queue has invalid content and is not read any more */
  uint64_t commands, results;
  uint32_t command_depth, result_pi;
  uint16_t command_ci;
  uint64_t command_due, result_armed_by;
  uint32_t mtu;
  struct erm_eq command_eq, aeq, ceq[ERM_MAX_VECTORS];
  uint32_t most_qps, most_cqs, most_mrs; /* sizes of the tables */
  uint32_t mrs;                          /* number of valid regions */
  struct erm_qp** qp;
  struct erm_cq** cq;
  struct erm_mr* mr;
  struct erm_qp* qps; /* rings of existing objects; NULL = none */
  struct erm_cq* cqs;
  uint32_t works; /* counts work requests, some of which are lost */
};

/* Functions of memory.c. */
struct erm_part {
  uint64_t address;
  uint32_t length, key;
};
/* One end of a transfer: parts of regions, or bytes in the work request. */
struct erm_side {
  struct erm_device* device;
  const uint8_t* bytes;
  struct erm_part part[ERM_MOST_PARTS];
  uint32_t parts, pd, rights;
};
void* erm_memory(struct erm_device* device, uint64_t address, uint64_t length, uint32_t alignment);
void* erm_at(struct erm_device* device, const struct erm_pages* pages, uint64_t at, uint32_t* room);
void* erm_block(struct erm_device* device, const struct erm_pages* pages, uint32_t index,
                uint32_t depth); /* block of a queue; NULL if the host has no such memory */
uint8_t erm_check_side(const struct erm_side* side, uint64_t* length);
bool erm_copy(const struct erm_side* to, const struct erm_side* from, uint64_t at, uint32_t length);

/* Functions of events.c. */
bool erm_eq_create(struct erm_device* device, struct erm_eq* eq, uint64_t ring, uint32_t depth);
void erm_eq_push(struct erm_device* device, struct erm_eq* eq, uint64_t event);
void erm_eq_serve(struct erm_device* device, struct erm_eq* eq);
bool erm_cq_serve(struct erm_device* device, struct erm_cq* cq);
void erm_asynchronous(struct erm_device* device, uint32_t type, uint32_t number);
struct erm_done {
  uint32_t queue, opcode, syndrome;
  uint32_t cqn, qpn, index, data, size;
  bool solicited;
};
void erm_complete(struct erm_device* device, const struct erm_done* done);

/* Commands in objects.c and queue_pairs.c. Those that return uint8_t return the syndrome, 0 =
 * done. */
bool erm_objects_create(struct erm_device* device);
void erm_objects_drop(struct erm_device* device); /* all objects that the driver made */
void erm_objects_destroy(struct erm_device* device);
uint8_t erm_cq_create(struct erm_device* device, const struct erm_create_cq* request);
uint8_t erm_cq_destroy(struct erm_device* device, uint32_t cqn);
uint8_t erm_mr_register(struct erm_device* device, const struct erm_register_mr* request);
uint8_t erm_mr_deregister(struct erm_device* device, uint32_t name);
uint8_t erm_qp_create(struct erm_device* device, const struct erm_create_qp* request,
                      uint64_t* cookie);
uint8_t erm_qp_destroy(struct erm_device* device, uint32_t qpn);
uint8_t erm_qp_modify(struct erm_device* device, const struct erm_modify_qp* request);
void erm_qp_drop(struct erm_qp* qp);

/* A parsed work request (requests.c). */
struct erm_request {
  uint64_t header;
  union {
    uint8_t bytes[ERM_MOST_BLOCKS * ERM_BLOCK];
    struct erm_work_request common;
  } blocks;
  uint32_t block_count, length;
  uint32_t opcode, received; /* received: the opcode of the peer's completion */
  bool takes;                /* it uses a receive of the peer, which then has a completion */
  bool sends;                /* that receive says where the bytes go */
  bool reads;
  struct erm_side local, remote;
};
uint16_t erm_sends_waiting(struct erm_qp* qp); /* number of blocks */
uint16_t erm_receives_waiting(struct erm_qp* qp);
bool erm_request_fetch(struct erm_qp* qp, struct erm_request* request);
const struct erm_receive* erm_receive_first(struct erm_qp* qp);

/* Functions of work.c. */
bool erm_work_step(struct erm_device* device);

/* Functions of endings.c: completions and ends of QPs. */
void erm_sent(struct erm_qp* qp, const struct erm_request* request, uint8_t syndrome);
void erm_received(struct erm_qp* qp, const struct erm_request* request, uint8_t syndrome);
void erm_qp_stop(struct erm_qp* qp, uint32_t state);
void erm_qp_fail(struct erm_qp* qp); /* stops the QP and reports it */
bool erm_qp_flush(struct erm_qp* qp);
void erm_qp_unlink(struct erm_qp* qp);

/* Functions of commands.c. */
void erm_command_step(struct erm_device* device, bool* did);

/* Writes a line with four numbers to the log (device.c). */
void erm_say(struct erm_device* device, const char* what, uint64_t a, uint64_t b, uint64_t c,
             uint64_t d);
