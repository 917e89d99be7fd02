/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A modelled eRDMA adapter: what the driver sees on its PCI function and what liberdma sees in its
 * queues. Portable C, hosted by a kernel module in the guest and by the tests. One thread calls it,
 * for all devices of a network.
 */
#pragma once

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ERM_MAX_DEVICES 2
#define ERM_MAX_VECTORS 32

/* What the model needs of its host. The BAR is memory: the model looks what was written there. */
struct erm_hooks {
  /* Memory of the host by its bus address, contiguous; NULL if that is not memory. */
  void* (*memory)(void* context, uint64_t address, uint64_t length);
  uint32_t (*read_register)(void* context, uint32_t at);
  void (*write_register)(void* context, uint32_t at, uint32_t value);
  uint64_t (*read_doorbell)(void* context, uint32_t at);
  void (*write_doorbell)(void* context, uint32_t at, uint64_t value);
  void (*raise)(void* context, unsigned int vector);
  uint64_t (*now)(void* context); /* in microseconds */
  void (*say)(void* context, const char* line);
};

/* What nobody knows of the hardware, and its limits. May be changed at any time, but for the
 * limits. */
struct erm_config {
  unsigned int flush;      /* what a QP in error completes: 0 nothing, 1 receives, 2 all */
  unsigned int rnr;        /* a send without a receive: 0 ends both, 1 waits, 2 ends the sender */
  unsigned int denied;     /* an access that the peer refuses: 0 access error, 1 retries exceeded */
  unsigned int loss;       /* each so many-th work request is lost; 0 = none */
  unsigned int delay_us;   /* that a work request takes */
  unsigned int command_us; /* that a command takes */
  unsigned int late;       /* a QP may be passed over in so many rounds */
  unsigned int aeq;        /* whether asynchronous events are told */
  unsigned int strict_arm; /* an arming that repeats both counts of the one before is no arming */
  unsigned int trace;
  /* Limits. */
  unsigned int vectors;
  unsigned int qblocks; /* thousands of QPs */
  unsigned int max_mr;  /* at a time; 0 = as many as the driver takes */
  unsigned int log_largest_mr, log_most_receives, log_most_cqes;
  unsigned int groups;
};
/* Each member is named: C++ warns of those that are not. */
#define ERM_DEFAULT_CONFIG                                                                        \
  {                                                                                               \
    .flush = 2, .rnr = 0, .denied = 0, .loss = 0, .delay_us = 0, .command_us = 0, .late = 0,      \
    .aeq = 1, .strict_arm = 0, .trace = 0, .vectors = ERM_MAX_VECTORS, .qblocks = 1, .max_mr = 0, \
    .log_largest_mr = 36, .log_most_receives = 15, .log_most_cqes = 20, .groups = 0               \
  }

struct erm_network; /* the devices that reach each other */
struct erm_network* erm_network_create(void);
void erm_network_destroy(struct erm_network* network); /* after its devices */

/* The hooks and the configuration remain the caller's, and must remain. NULL: no memory, or no
 * room. */
struct erm_device* erm_create(struct erm_network* network, const struct erm_hooks* hooks,
                              void* context, const struct erm_config* config, const uint8_t mac[6]);
void erm_destroy(struct erm_device* device);
bool erm_step(struct erm_device* device); /* does what is due; true: there was something */

#ifdef __cplusplus
}
#endif
