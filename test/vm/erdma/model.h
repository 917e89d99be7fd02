/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A modelled eRDMA adapter: the PCI function for the driver, and the queues for liberdma. It is
 * portable C, and runs in a kernel module of the guest and in the tests. One thread calls it for
 * all devices of a network. */
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

/* The host's functions for the model. The BAR is memory, in which the model looks for writes. */
struct erm_hooks {
  /* Returns contiguous memory of the host by its bus address, or NULL if there is none. */
  void* (*memory)(void* context, uint64_t address, uint64_t length);
  uint32_t (*read_register)(void* context, uint32_t at);
  void (*write_register)(void* context, uint32_t at, uint32_t value);
  uint64_t (*read_doorbell)(void* context, uint32_t at);
  void (*write_doorbell)(void* context, uint32_t at, uint64_t value);
  void (*raise)(void* context, unsigned int vector);
  uint64_t (*now)(void* context); /* in microseconds */
  void (*say)(void* context, const char* line);
};

/* Unknown properties of the hardware, and its limits. All except the limits may change at any
 * time. */
struct erm_config {
  unsigned int flush;      /* completions of a QP in error: 0 nothing, 1 receives, 2 all */
  unsigned int rnr;        /* a send without a receive: 0 ends both, 1 waits, 2 ends the sender */
  unsigned int denied;     /* result of a refused access: 0 access error, 1 retries exceeded */
  unsigned int loss;       /* one of so many work requests is lost; 0 = none */
  unsigned int delay_us;   /* duration of a work request */
  unsigned int command_us; /* duration of a command */
  unsigned int late;       /* a QP may be passed over in this number of rounds */
  unsigned int aeq;        /* 1: asynchronous events are sent */
  unsigned int strict_arm; /* 1: an arming that repeats both counts of the last one has no effect */
  unsigned int trace;
  /* Limits, fixed when the device is made. */
  unsigned int vectors;
  unsigned int qblocks; /* thousands of QPs */
  unsigned int max_mr;  /* regions at a time; 0 = as many as the driver takes */
  unsigned int log_largest_mr, log_most_receives, log_most_cqes;
  unsigned int groups;
};
/* All members are named, as C++ warns about others. */
#define ERM_DEFAULT_CONFIG                                                                        \
  {                                                                                               \
    .flush = 2, .rnr = 0, .denied = 0, .loss = 0, .delay_us = 0, .command_us = 0, .late = 0,      \
    .aeq = 1, .strict_arm = 0, .trace = 0, .vectors = ERM_MAX_VECTORS, .qblocks = 1, .max_mr = 0, \
    .log_largest_mr = 36, .log_most_receives = 15, .log_most_cqes = 20, .groups = 0               \
  }

struct erm_network; /* devices that can reach each other */
struct erm_network* erm_network_create(void);
void erm_network_destroy(struct erm_network* network); /* after its devices */

/* The hooks and the configuration belong to the caller and must outlive the device. Returns NULL
 * without memory or without room in the network. */
struct erm_device* erm_create(struct erm_network* network, const struct erm_hooks* hooks,
                              void* context, const struct erm_config* config, const uint8_t mac[6]);
void erm_destroy(struct erm_device* device);
bool erm_step(struct erm_device* device); /* does all that is due; returns true if there was any */

#ifdef __cplusplus
}
#endif
