/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The registers and the content of the queues, which the adapter, erdma.ko and liberdma share. The
 * names are the model's own. layout_check.c compares all numbers with the driver's erdma_hw.h where
 * it is available. */
#pragma once

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
#endif

/* A field of a word, of at most 32 bits, and access to its value. */
#define ERM_BITS(high, low) ((~0ULL >> (63 - (high))) & (~0ULL << (low)))
#define ERM_LOWEST(field) ((field) & (~(field) + 1))
#define ERM_GET(field, word) ((uint32_t)(((word) & (field)) / ERM_LOWEST(field)))
#define ERM_PUT(field, value) (((uint64_t)(value)*ERM_LOWEST(field)) & (field))

/* BAR 0. The 64-bit words from 0x100 on and the one at 0x50 are doorbells, which take one write. */
enum erm_register {
  ERM_VERSION = 0x00, /* 0 = not an adapter */
  ERM_CONTROL = 0x10,
  ERM_STATUS = 0x14,
  ERM_MAC_LOW = 0x18, /* the last four bytes, the last one lowest */
  ERM_MAC_HIGH = 0x1c,
  ERM_COMMANDS = 0x20, /* two words for each address */
  ERM_RESULTS = 0x28,
  ERM_COMMAND_DEPTH = 0x30, /* in blocks; the results have the same depth */
  ERM_COMMAND_EQ_DEPTH = 0x34,
  ERM_COMMAND_EQ = 0x38,
  ERM_AEQ = 0x40,
  ERM_AEQ_DEPTH = 0x48,
  ERM_GROUPS = 0x4c, /* groups of doorbells for whole work requests; below 4, there are none */
  ERM_AEQ_DOORBELL = 0x50,
  ERM_EQ_DOORBELLS = 0x100, /* 8 bytes for each EQ; EQ 0 is that of the command queue */
  ERM_COMMAND_DOORBELL = 0x200,
  ERM_RESULT_DOORBELL = 0x300,
};
#define ERM_BAR_SIZE 0x80000u
enum { ERM_CONTROL_RESET = 1, ERM_CONTROL_START = 2 };
enum { ERM_STATUS_RESET_DONE = 1, ERM_STATUS_STARTED = 2 };

/* Doorbells, and their records in the memory of the host. */
#define ERM_CQ_DOORBELL_COUNT ERM_BITS(63, 56) /* number of armings */
#define ERM_CQ_DOORBELL_CQN ERM_BITS(55, 32)
#define ERM_CQ_DOORBELL_ARMED ERM_BITS(31, 31)
#define ERM_CQ_DOORBELL_SOLICITED ERM_BITS(30, 30)
#define ERM_CQ_DOORBELL_EVENTS ERM_BITS(29, 28) /* number of events that the host has seen */
#define ERM_CQ_DOORBELL_CI ERM_BITS(23, 0)
#define ERM_EQ_DOORBELL_ARMED ERM_BITS(31, 31)
#define ERM_EQ_DOORBELL_CI ERM_BITS(23, 0)
#define ERM_SQ_DOORBELL_QPN ERM_BITS(51, 32)
#define ERM_RQ_DOORBELL_QPN ERM_BITS(63, 32)
#define ERM_QUEUE_DOORBELL_PI ERM_BITS(15, 0)

#define ERM_BLOCK 32u /* size of a block in send and command queues; a receive; a completion */
#define ERM_EVENT 16u
#define ERM_MOST_BLOCKS 4u /* in a work request */

/* The first word of a command. */
#define ERM_COMMAND_BLOCKS ERM_BITS(54, 52) /* less one */
#define ERM_COMMAND_TAG ERM_BITS(47, 32)
#define ERM_COMMAND_MODULE ERM_BITS(25, 24)
#define ERM_COMMAND_OPCODE ERM_BITS(23, 16)
#define ERM_COMMAND_INDEX ERM_BITS(15, 0)
/* Module and opcode. */
enum erm_command {
  ERM_QUERY_DEVICE = 0x000,
  ERM_CREATE_QP = 0x001,
  ERM_DESTROY_QP = 0x002,
  ERM_MODIFY_QP = 0x003,
  ERM_CREATE_CQ = 0x004,
  ERM_DESTROY_CQ = 0x005,
  ERM_REGISTER = 0x008,
  ERM_DEREGISTER = 0x009,
  ERM_CREATE_EQ = 0x100,
  ERM_DESTROY_EQ = 0x101,
  ERM_QUERY_FIRMWARE = 0x102,
  ERM_SET_MTU = 0x103,
};

struct erm_create_eq {
  uint64_t header, ring;
  uint8_t vector, eqn, log_depth, type;
  uint32_t record_low, record_high;
};

struct erm_destroy_eq {
  uint64_t header, unused;
  uint8_t vector, eqn, unused_too, type;
};

struct erm_create_cq {
  uint64_t header;
  uint32_t shape, ring_low, ring_high, place;
  uint64_t record;
  uint32_t offset; /* in bytes, of the ring in its first page */
};
#define ERM_CQ_LOG_DEPTH ERM_BITS(31, 24) /* in shape */
#define ERM_CQ_PAGE_SHIFT ERM_BITS(23, 20)
#define ERM_CQ_NUMBER ERM_BITS(19, 0)
#define ERM_CQ_PAGES ERM_BITS(31, 16) /* in place */
#define ERM_CQ_TABLE ERM_BITS(15, 15)
#define ERM_CQ_EQN ERM_BITS(9, 0)

struct erm_create_qp {
  uint64_t header;
  uint32_t sq_shape, rq_shape; /* log depth and QP number; log depth and PD */
  uint32_t sq_place, rq_place;
  uint64_t sq_ring, rq_ring;
  uint32_t sq_pages, rq_pages;
  uint64_t sq_record, rq_record;
};
#define ERM_QP_LOG_DEPTH ERM_BITS(31, 20) /* in a shape */
#define ERM_QP_NUMBER ERM_BITS(19, 0)
#define ERM_QP_PD ERM_BITS(19, 0)
#define ERM_QP_PAGE_SHIFT ERM_BITS(31, 28) /* in a place */
#define ERM_QP_CQN ERM_BITS(23, 0)
#define ERM_QP_OFFSET ERM_BITS(31, 12) /* in sq_pages and rq_pages; in bytes, not shifted */
#define ERM_QP_PAGES ERM_BITS(11, 1)
#define ERM_QP_TABLE ERM_BITS(0, 0)

struct erm_modify_qp {
  uint64_t header;
  uint32_t target, cookie;  /* state and number; cookie of the peer */
  uint32_t peer_ip, own_ip; /* in network byte order, like the ports */
  uint16_t own_port, peer_port;
  uint32_t send_next, receive_next;
};
#define ERM_TARGET_STATE ERM_BITS(31, 24)
#define ERM_TARGET_QPN ERM_BITS(19, 0)
enum erm_state { ERM_IDLE, ERM_RTR, ERM_RTS, ERM_CLOSING, ERM_TERMINATE, ERM_ERROR };

struct erm_register_mr {
  uint64_t header;
  uint32_t name, rights;
  uint64_t start;
  uint32_t size, place; /* the driver gives 0 for 4 GiB */
  uint64_t pages[4];
};
struct erm_deregister_mr {
  uint64_t header;
  uint32_t name;
};
#define ERM_MR_VALID ERM_BITS(31, 31) /* in a name */
#define ERM_MR_KEY ERM_BITS(27, 20)
#define ERM_MR_INDEX ERM_BITS(19, 0)
#define ERM_MR_PD ERM_BITS(31, 12) /* in rights */
#define ERM_MR_TYPE ERM_BITS(7, 6)
#define ERM_MR_RIGHTS ERM_BITS(5, 2)
#define ERM_MR_PAGE_SHIFT ERM_BITS(31, 27) /* in a place */
#define ERM_MR_TABLE ERM_BITS(21, 20)
#define ERM_MR_PAGES ERM_BITS(19, 0)
enum { ERM_MR_NORMAL, ERM_MR_FAST, ERM_MR_DMA };
enum { ERM_LOCAL_READ = 1, ERM_LOCAL_WRITE = 2, ERM_REMOTE_READ = 4, ERM_REMOTE_WRITE = 8 };

struct erm_destroy_queue { /* a QP, or a CQ */
  uint64_t header;
  uint32_t number;
};
struct erm_set_mtu {
  uint64_t header;
  uint32_t mtu;
};

/* Answers of 64 bits each. */
#define ERM_LOG_MOST_CQES ERM_BITS(47, 40) /* in the first answer to QUERY_DEVICE */
#define ERM_LOG_MOST_RECEIVES ERM_BITS(23, 16)
#define ERM_LOG_LARGEST_MR ERM_BITS(7, 0)
#define ERM_QP_BLOCKS ERM_BITS(27, 16) /* in the second answer: thousands of QPs */
#define ERM_QPS_PER_BLOCK 1024u
#define ERM_QP_COOKIE ERM_BITS(31, 0)

/* A completion of big-endian words. Completions of commands hold two answers in words 2 to 5. */
struct erm_completion {
  uint32_t header, index, qpn, data, size, unused[3];
};
#define ERM_CQE_OWNER ERM_BITS(31, 31)
#define ERM_CQE_OPCODE ERM_BITS(23, 16)
#define ERM_CQE_QUEUE ERM_BITS(15, 8)
#define ERM_CQE_SYNDROME ERM_BITS(7, 0)
enum erm_queue_type { ERM_OF_SENDS, ERM_OF_RECEIVES, ERM_OF_COMMANDS };

/* An event of a CQ or of the AEQ. */
#define ERM_EVENT_OWNER ERM_BITS(31, 31)
#define ERM_EVENT_CQN ERM_BITS(19, 0)
#define ERM_EVENT_CQ_PI ERM_BITS(55, 32)
#define ERM_EVENT_TYPE ERM_BITS(23, 16)
#define ERM_EVENT_NUMBER                                                  \
  ERM_BITS(63, 32) /* of the QP or CQ that an asynchronous event is about \
                    */
enum { ERM_QP_FATAL = 0, ERM_CQ_ERROR = 3 };

/* The first word of a work request. */
#define ERM_WORK_PARTS ERM_BITS(63, 56)  /* bytes, if they are inline */
#define ERM_WORK_BLOCKS ERM_BITS(54, 52) /* less one */
#define ERM_WORK_QPN ERM_BITS(51, 32)
#define ERM_WORK_OPCODE ERM_BITS(31, 27)
#define ERM_WORK_INLINE ERM_BITS(25, 25)
#define ERM_WORK_FENCE ERM_BITS(24, 24)
#define ERM_WORK_SOLICITED ERM_BITS(23, 23)
#define ERM_WORK_SIGNALLED ERM_BITS(22, 22)
#define ERM_WORK_INDEX ERM_BITS(15, 0)
enum erm_opcode {
  ERM_WRITE = 0,
  ERM_READ = 1,
  ERM_SEND = 2,
  ERM_SEND_IMM = 3,
  ERM_RECEIVED = 4,
  ERM_RECEIVED_WRITE_IMM = 5,
  ERM_RECEIVED_INVALIDATE = 6,
  ERM_WRITE_IMM = 9,
  ERM_RECEIVED_SEND_IMM = 12,
  ERM_SEND_INVALIDATE = 13,
};

struct erm_sge {
  uint64_t address;
  uint32_t length, key;
};
/* All work requests begin like this. The parts or bytes of a SEND follow from byte 16, those of a
 * WRITE from byte 32. */
struct erm_work_request {
  uint64_t header;
  uint32_t data, length; /* data: immediate as on the wire, or the key to invalidate */
  uint32_t sink_key, sink_low, sink_high, unused; /* of a WRITE: remote; of a READ: local */
};
struct erm_receive {
  uint16_t index, unused;
  uint32_t qpn, unused_too[2];
  uint64_t address;
  uint32_t length, key;
};
#define ERM_SEND_PARTS_AT 16u
#define ERM_WRITE_PARTS_AT 32u
#define ERM_MOST_PARTS 6u

enum erm_syndrome {
  ERM_SUCCESS = 0,
  ERM_GENERAL = 1,
  ERM_BAD_RECEIVE = 2, /* 2 to 6: of the receiving side; of the sending side 7 to 13 */
  ERM_REMOTE_KEY = 3,
  ERM_REMOTE_RANGE = 4,
  ERM_REMOTE_RIGHTS = 5,
  ERM_REMOTE_PD = 6,
  ERM_BAD_REQUEST = 8,
  ERM_LOCAL_KEY = 10,
  ERM_LOCAL_RANGE = 11,
  ERM_LOCAL_RIGHTS = 12,
  ERM_LOCAL_PD = 13,
  ERM_FLUSHED = 15,
  ERM_RETRIES_EXCEEDED = 16,
};
#define ERM_LOCAL_TO_REMOTE 7u
