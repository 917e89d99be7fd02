// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* The command queue with the driver's requests to the firmware. */
#include "inside.h"

#define COMMAND_WORDS 32 /* the longest command that the length field can describe */
#define FIRMWARE_VERSION 0x00010000u

/* A handler's arguments: the command, and room for two answers. */
struct asked {
  struct erm_device* device;
  const void* command;
  uint64_t* answer;
};

static uint8_t query_device(const struct asked* asked) {
  const struct erm_config* config = asked->device->config;

  asked->answer[0] = ERM_PUT(ERM_LOG_MOST_CQES, config->log_most_cqes) |
                     ERM_PUT(ERM_LOG_MOST_RECEIVES, config->log_most_receives) |
                     ERM_PUT(ERM_LOG_LARGEST_MR, config->log_largest_mr);
  asked->answer[1] = ERM_PUT(ERM_QP_BLOCKS, config->qblocks);
  return ERM_SUCCESS;
}

static uint8_t query_firmware(const struct asked* asked) {
  asked->answer[0] = FIRMWARE_VERSION;
  return ERM_SUCCESS;
}

static uint8_t set_mtu(const struct asked* asked) {
  asked->device->mtu = ((const struct erm_set_mtu*)asked->command)->mtu;
  return ERM_SUCCESS;
}

/* EQ 0 belongs to the command queue. The registers name it, so no command creates it. */
static uint8_t create_eq(const struct asked* asked) {
  const struct erm_create_eq* request = asked->command;
  struct erm_device* device = asked->device;
  struct erm_eq* eq;

  if (!request->eqn || request->eqn >= device->config->vectors || request->log_depth > 16 ||
      request->vector >= device->config->vectors)
    return ERM_GENERAL;
  eq = &device->ceq[request->eqn];
  if (eq->ring || !erm_eq_create(device, eq, request->ring, 1u << request->log_depth))
    return ERM_GENERAL;
  eq->vector = request->vector;
  eq->doorbell = ERM_EQ_DOORBELLS + request->eqn * 8u;
  device->hooks->write_doorbell(device->context, eq->doorbell, 0);
  return ERM_SUCCESS;
}

static uint8_t destroy_eq(const struct asked* asked) {
  uint8_t eqn = ((const struct erm_destroy_eq*)asked->command)->eqn;

  if (!eqn || eqn >= ERM_MAX_VECTORS || !asked->device->ceq[eqn].ring) return ERM_GENERAL;
  asked->device->ceq[eqn].ring = 0;
  return ERM_SUCCESS;
}

static uint8_t create_qp(const struct asked* asked) {
  return erm_qp_create(asked->device, asked->command, asked->answer);
}
static uint8_t destroy_qp(const struct asked* asked) {
  return erm_qp_destroy(asked->device, ((const struct erm_destroy_queue*)asked->command)->number);
}
static uint8_t modify_qp(const struct asked* asked) {
  return erm_qp_modify(asked->device, asked->command);
}
static uint8_t create_cq(const struct asked* asked) {
  return erm_cq_create(asked->device, asked->command);
}
static uint8_t destroy_cq(const struct asked* asked) {
  return erm_cq_destroy(asked->device, ((const struct erm_destroy_queue*)asked->command)->number);
}
static uint8_t register_mr(const struct asked* asked) {
  return erm_mr_register(asked->device, asked->command);
}
static uint8_t deregister_mr(const struct asked* asked) {
  return erm_mr_deregister(asked->device, ((const struct erm_deregister_mr*)asked->command)->name);
}

static const struct {
  uint16_t command;
  uint8_t (*run)(const struct asked* asked);
} handlers[] = {
    {ERM_QUERY_DEVICE, query_device},     {ERM_CREATE_QP, create_qp},
    {ERM_DESTROY_QP, destroy_qp},         {ERM_MODIFY_QP, modify_qp},
    {ERM_CREATE_CQ, create_cq},           {ERM_DESTROY_CQ, destroy_cq},
    {ERM_REGISTER, register_mr},          {ERM_DEREGISTER, deregister_mr},
    {ERM_CREATE_EQ, create_eq},           {ERM_DESTROY_EQ, destroy_eq},
    {ERM_QUERY_FIRMWARE, query_firmware}, {ERM_SET_MTU, set_mtu},
};

static void answer(struct erm_device* device, uint16_t index, const uint64_t* command,
                   uint8_t syndrome, const uint64_t* answers) {
  uint32_t depth = device->command_depth, i;
  uint64_t at = (uint64_t)(device->result_pi & (depth - 1)) * ERM_BLOCK;
  uint32_t* result = erm_memory(device, device->results + at, ERM_BLOCK, ERM_BLOCK);
  uint32_t header =
      (uint32_t)(ERM_PUT(ERM_CQE_OPCODE, ERM_GET(ERM_COMMAND_OPCODE, *command)) |
                 ERM_PUT(ERM_CQE_QUEUE, ERM_OF_COMMANDS) | ERM_PUT(ERM_CQE_SYNDROME, syndrome) |
                 (device->result_pi & depth ? 0 : ERM_CQE_OWNER));

  if (!result) {
    device->broken = true;
    return;
  }
  result[1] = __builtin_bswap32(index & (depth - 1));
  for (i = 0; i < 4; i++)
    result[2 + i] = __builtin_bswap32((uint32_t)(answers[i / 2] >> (i % 2 * 32)));
  erm_store_half(result, __builtin_bswap32(header));
  device->result_pi++;
}

static void run(struct erm_device* device, uint16_t index, const uint64_t* command) {
  uint16_t wanted = (uint16_t)(ERM_GET(ERM_COMMAND_MODULE, *command) << 8 |
                               ERM_GET(ERM_COMMAND_OPCODE, *command));
  uint64_t answers[2] = {0, 0};
  const struct asked asked = {device, command, answers};
  uint8_t syndrome = ERM_GENERAL;
  size_t i;

  for (i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++)
    if (handlers[i].command == wanted) syndrome = handlers[i].run(&asked);
  if (syndrome || device->config->trace)
    erm_say(device, syndrome ? "command refused" : "command", wanted, command[1], command[2],
            command[3]);
  answer(device, index, command, syndrome, answers);
}

/* Copies the next command. Returns its number of blocks, or 0 if the queue is inconsistent. */
static uint32_t fetch(struct erm_device* device, uint16_t waiting, uint64_t* command) {
  uint32_t blocks = 1, i;

  for (i = 0; i < blocks; i++) {
    uint64_t at = (uint64_t)((device->command_ci + i) & (device->command_depth - 1)) * ERM_BLOCK;
    const void* block = erm_memory(device, device->commands + at, ERM_BLOCK, ERM_BLOCK);

    if (!block) return 0;
    memcpy(command + i * 4, block, ERM_BLOCK);
    if (!i) blocks = (uint32_t)ERM_GET(ERM_COMMAND_BLOCKS, command[0]) + 1;
    if (blocks > waiting || waiting > device->command_depth) return 0;
  }
  return blocks;
}

/* Returns true once the waiting command has taken its time. */
static bool due(struct erm_device* device) {
  uint64_t now = device->hooks->now(device->context);

  if (!device->command_due) device->command_due = now + device->config->command_us;
  if (now < device->command_due) return false;
  device->command_due = 0;
  return true;
}

/* Sends one event for each time that the driver armed the queue, if there are results past its
 * index. */
static void tell(struct erm_device* device) {
  uint64_t armed = device->hooks->read_doorbell(device->context, ERM_RESULT_DOORBELL);

  if (!(armed & ERM_CQ_DOORBELL_ARMED) || armed == device->result_armed_by ||
      ERM_GET(ERM_CQ_DOORBELL_CI, armed) == (device->result_pi & ERM_CQ_DOORBELL_CI))
    return;
  device->result_armed_by = armed;
  erm_eq_push(device, &device->command_eq, 0);
}

void erm_command_step(struct erm_device* device, bool* did) {
  uint64_t command[COMMAND_WORDS] = {0};

  while (!device->broken) {
    uint64_t door = device->hooks->read_doorbell(device->context, ERM_COMMAND_DOORBELL);
    uint16_t waiting = (uint16_t)(ERM_GET(ERM_QUEUE_DOORBELL_PI, door) - device->command_ci);
    uint32_t blocks;

    if (!waiting || !due(device)) break;
    blocks = fetch(device, waiting, command);
    if (!blocks) {
      erm_say(device, "command queue broken", device->command_ci, waiting, command[0], 0);
      device->broken = true;
      break;
    }
    run(device, device->command_ci, command);
    device->command_ci = (uint16_t)(device->command_ci + blocks);
    *did = true;
  }
  if (device->result_pi) tell(device);
}
