// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Hosts the model in the guest, as PCI functions 1ded:107f in memory that the machine's command
 * line reserves. The kernel's own erdma.ko drives them. One thread reads what the driver and
 * liberdma write, for all functions. */
#include "guest.h"

#include <linux/bottom_half.h>
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/io.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>

static unsigned long base;
module_param(base, ulong, 0444);
MODULE_PARM_DESC(base, "physical address of the memory that memmap= reserved, 2 MiB per device");
static char* mac[ERM_MAX_DEVICES];
static int count;
module_param_array(mac, charp, &count, 0444);
MODULE_PARM_DESC(mac, "MAC of the network interface that each device belongs to");
static unsigned int spin = 50;
module_param(spin, uint, 0644);
MODULE_PARM_DESC(spin, "rounds without work before the thread sleeps");

static struct erm_config config = ERM_DEFAULT_CONFIG;
#define SETTING(name, mode, text)                    \
  module_param_named(name, config.name, uint, mode); \
  MODULE_PARM_DESC(name, text)
SETTING(flush, 0644, "a QP in error completes: 0 nothing, 1 receives, 2 all");
SETTING(rnr, 0644, "a send without a receive: 0 ends both, 1 waits, 2 ends the sender");
SETTING(denied, 0644, "an access that the peer refuses: 0 access error, 1 retries exceeded");
SETTING(loss, 0644, "each so many-th work request is lost; 0 = none");
SETTING(delay_us, 0644, "that a work request takes");
SETTING(command_us, 0644, "that a command takes");
SETTING(late, 0644, "a QP may be passed over in so many rounds");
SETTING(aeq, 0644, "whether asynchronous events are told");
SETTING(strict_arm, 0644, "an arming that repeats both counts of the one before is none");
SETTING(trace, 0644, "a line for each command and work request");
SETTING(vectors, 0444, "of interrupts");
SETTING(qblocks, 0444, "thousands of QPs");
SETTING(max_mr, 0644, "regions at a time; 0 = as many as the driver takes");
SETTING(log_largest_mr, 0444, "bytes of the largest region");
SETTING(log_most_receives, 0444, "of a QP");
SETTING(log_most_cqes, 0444, "of a CQ");
SETTING(groups, 0444, "of doorbells for whole work requests");

static struct erm_network* network;
static struct card* cards[ERM_MAX_DEVICES];
static struct task_struct* thread;

/* Bus addresses are physical addresses, as there is no IOMMU and no bounce buffer. */
static void* memory(void* context, uint64_t address, uint64_t length) {
  if (!pfn_valid(PFN_DOWN(address)) || !pfn_valid(PFN_DOWN(address + length - 1))) return NULL;
  return phys_to_virt(address);
}

static void __iomem* bar(void* context, uint32_t at) {
  return ((struct card*)context)->bar + at;
}
static uint32_t read_register(void* context, uint32_t at) {
  return readl(bar(context, at));
}
static void write_register(void* context, uint32_t at, uint32_t value) {
  writel(value, bar(context, at));
}
static uint64_t read_doorbell(void* context, uint32_t at) {
  return readq(bar(context, at));
}
static void write_doorbell(void* context, uint32_t at, uint64_t value) {
  writeq(value, bar(context, at));
}
static uint64_t now(void* context) {
  return ktime_to_us(ktime_get());
}
static void say(void* context, const char* line) {
  pr_info_ratelimited("ermodel: device %d: %s\n", ((struct card*)context)->index, line);
}

static const struct erm_hooks hooks = {
    .memory = memory,
    .read_register = read_register,
    .write_register = write_register,
    .read_doorbell = read_doorbell,
    .write_doorbell = write_doorbell,
    .raise = card_raise,
    .now = now,
    .say = say,
};

/* The thread soon sleeps for short times, as polling programs need the CPUs, and as a spinning
 * thread loses its turn to them for milliseconds. With FIFO scheduling, it gets the CPU back at
 * once. */
static int run(void* argument) {
  unsigned int idle = 0;
  int i;

  sched_set_fifo_low(current);
  while (!kthread_should_stop()) {
    bool did = false;

    for (i = 0; i < ERM_MAX_DEVICES; i++) {
      struct card* card = smp_load_acquire(&cards[i]);

      did |= card && smp_load_acquire(&card->served) && erm_step(card->model);
    }
    idle = did ? 0 : min(idle + 1, 1u << 20);
    if (idle > spin + 5000)
      usleep_range(400, 800);
    else if (idle > spin)
      usleep_range(10, 30);
    else
      cond_resched();
  }
  return 0;
}

static void free_card(struct card* card) {
  if (card->model) erm_destroy(card->model);
  pci_dev_put(card->pdev); /* the model raised its interrupts until now */
  if (card->bar) iounmap(card->bar);
  card_free_interrupts(card);
  kfree(card);
}

static int add_card(int index) {
  struct card* card = kzalloc(sizeof(*card), GFP_KERNEL);
  u8 address[ETH_ALEN];

  if (!card || !mac_pton(mac[index], address)) {
    kfree(card);
    return card ? -EINVAL : -ENOMEM;
  }
  card->index = index;
  card->start = base + index * CARD_WINDOW;
  card->vectors = config.vectors;
  card->bar = ioremap(card->start, ERM_BAR_SIZE); /* uncached, as the driver maps it */
  if (card->bar) {
    memset_io(card->bar, 0, ERM_BAR_SIZE);
    card->model = erm_create(network, &hooks, card, &config, address);
  }
  smp_store_release(&cards[index], card);
  return card->model ? card_plug(card) : -ENOMEM;
}

/* erdma.ko's remove function still sends commands, so the thread ends last. */
static void ermodel_exit(void) {
  int i;

  for (i = 0; i < ERM_MAX_DEVICES; i++)
    if (cards[i]) card_unplug(cards[i]);
  kthread_stop(thread);
  for (i = 0; i < ERM_MAX_DEVICES; i++)
    if (cards[i]) free_card(cards[i]);
  erm_network_destroy(network);
}

static bool sane(void) {
  return base && count && config.vectors >= 2 && config.vectors <= ERM_MAX_VECTORS &&
         config.qblocks && config.qblocks < 4096 && config.log_most_cqes <= 24;
}

static int ermodel_init(void) {
  int i, error = 0;

  if (!sane()) return -EINVAL;
  network = erm_network_create();
  if (!network) return -ENOMEM;
  thread = kthread_run(run, NULL, "ermodel");
  if (IS_ERR(thread)) {
    erm_network_destroy(network);
    return PTR_ERR(thread);
  }
  for (i = 0; i < count && !error; i++) error = add_card(i);
  if (error) ermodel_exit();
  return error;
}
module_init(ermodel_init);
module_exit(ermodel_exit);
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("Model of an eRDMA adapter for tests");
