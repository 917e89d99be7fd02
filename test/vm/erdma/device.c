// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* The registers, start and reset of a device. */
#include "inside.h"

struct erm_network* erm_network_create(void) {
  return erm_allocate(1, sizeof(struct erm_network));
}

void erm_network_destroy(struct erm_network* network) {
  erm_release(network);
}

void erm_say(struct erm_device* device, const char* what, uint64_t a, uint64_t b, uint64_t c,
             uint64_t d) {
  char line[200];

  snprintf(line, sizeof(line), "%s %llx %llx %llx %llx", what, (unsigned long long)a,
           (unsigned long long)b, (unsigned long long)c, (unsigned long long)d);
  device->hooks->say(device->context, line);
}

static uint32_t reg(struct erm_device* device, uint32_t at) {
  return device->hooks->read_register(device->context, at);
}
static uint64_t address(struct erm_device* device, uint32_t at) {
  return reg(device, at) | (uint64_t)reg(device, at + 4) << 32;
}

static bool start(struct erm_device* device) {
  uint32_t depth = reg(device, ERM_COMMAND_DEPTH);

  device->command_depth = depth;
  device->commands = address(device, ERM_COMMANDS);
  device->results = address(device, ERM_RESULTS);
  device->command_eq.doorbell = ERM_EQ_DOORBELLS;
  device->aeq.doorbell = ERM_AEQ_DOORBELL;
  if (!depth || depth & (depth - 1) || depth > 1u << 15 ||
      !erm_memory(device, device->commands, (uint64_t)depth * ERM_BLOCK, ERM_BLOCK) ||
      !erm_memory(device, device->results, (uint64_t)depth * ERM_BLOCK, ERM_BLOCK) ||
      !erm_eq_create(device, &device->command_eq, address(device, ERM_COMMAND_EQ),
                     reg(device, ERM_COMMAND_EQ_DEPTH)) ||
      !erm_eq_create(device, &device->aeq, address(device, ERM_AEQ), reg(device, ERM_AEQ_DEPTH)))
    return false;
  device->command_ci = 0;
  device->result_pi = 0;
  device->command_due = device->result_armed_by = 0;
  device->broken = false;
  device->hooks->write_register(device->context, ERM_STATUS, ERM_STATUS_STARTED);
  return true;
}

/* Resets the device. It does not access the host's memory from here on. */
static void reset(struct erm_device* device) {
  const struct erm_hooks* hooks = device->hooks;
  uint32_t i;

  device->in_reset = true;
  device->up = false;
  erm_objects_drop(device);
  device->command_eq.ring = device->aeq.ring = 0;
  for (i = 0; i < ERM_MAX_VECTORS; i++) {
    device->ceq[i].ring = 0;
    hooks->write_doorbell(device->context, ERM_EQ_DOORBELLS + i * 8, 0);
  }
  hooks->write_doorbell(device->context, ERM_AEQ_DOORBELL, 0);
  hooks->write_doorbell(device->context, ERM_COMMAND_DOORBELL, 0);
  hooks->write_doorbell(device->context, ERM_RESULT_DOORBELL, 0);
  hooks->write_register(device->context, ERM_STATUS, ERM_STATUS_RESET_DONE);
}

/* Only the driver writes the control register, at any time, so the model never does. */
static bool control(struct erm_device* device) {
  uint32_t wanted = reg(device, ERM_CONTROL);

  if (wanted & ERM_CONTROL_RESET) {
    if (device->in_reset) return false;
    reset(device);
    return true;
  }
  device->in_reset = false;
  if (device->up || !(wanted & ERM_CONTROL_START)) return false;
  device->up = start(device);
  return device->up;
}

bool erm_step(struct erm_device* device) {
  struct erm_cq* cq;
  bool did = control(device);
  uint32_t i;

  if (!device->up) return did;
  erm_command_step(device, &did);
  did |= erm_work_step(device);
  for (cq = device->cqs; cq; cq = cq->next == device->cqs ? NULL : cq->next)
    did |= erm_cq_serve(device, cq);
  erm_eq_serve(device, &device->command_eq);
  erm_eq_serve(device, &device->aeq);
  for (i = 1; i < ERM_MAX_VECTORS; i++)
    if (device->ceq[i].ring) erm_eq_serve(device, &device->ceq[i]);
  return did;
}

/* Adds a new device to the network, and makes its number and objects. */
static bool enter(struct erm_network* network, struct erm_device* device) {
  int i;

  if (!erm_objects_create(device)) return false;
  for (i = 0; i < ERM_MAX_DEVICES && network->devices[i]; i++) continue;
  if (i == ERM_MAX_DEVICES) return false;
  network->devices[i] = device;
  return true;
}

struct erm_device* erm_create(struct erm_network* network, const struct erm_hooks* hooks,
                              void* context, const struct erm_config* config,
                              const uint8_t mac[6]) {
  struct erm_device* device = erm_allocate(1, sizeof(*device));

  if (!device) return NULL;
  device->network = network;
  device->hooks = hooks;
  device->context = context;
  device->config = config;
  if (!enter(network, device)) {
    erm_destroy(device);
    return NULL;
  }
  hooks->write_register(context, ERM_VERSION, 1);
  hooks->write_register(context, ERM_GROUPS, config->groups);
  hooks->write_register(
      context, ERM_MAC_LOW,
      (uint32_t)mac[2] << 24 | (uint32_t)mac[3] << 16 | (uint32_t)mac[4] << 8 | mac[5]);
  hooks->write_register(context, ERM_MAC_HIGH, (uint32_t)mac[0] << 8 | mac[1]);
  return device;
}

void erm_destroy(struct erm_device* device) {
  int i;

  erm_objects_destroy(device);
  for (i = 0; i < ERM_MAX_DEVICES; i++)
    if (device->network->devices[i] == device) device->network->devices[i] = NULL;
  erm_release(device);
}
