// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* PCI functions of the guest in memory: configuration space, MSI-X, and a root bus for each. */
#include <linux/bottom_half.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/msi.h>

#include "guest.h"

#define MSIX_CAP 0x40
#define MSIX_PBA 0x800

static const u32 bar_size[6] = {[0] = ERM_BAR_SIZE, [2] = CARD_BAR2_SIZE};

static void put16(struct card* card, int at, u16 value) {
  *(__le16*)(card->space + at) = cpu_to_le16(value);
}
static void put32(struct card* card, int at, u32 value) {
  *(__le32*)(card->space + at) = cpu_to_le32(value);
}

/* The BARs have their addresses already, as if firmware had chosen them. The kernel could not
 * choose them, as it takes no memory that E820 calls reserved (arch_remove_reservations), and this
 * memory is. */
static void init_space(struct card* card) {
  put16(card, PCI_VENDOR_ID, 0x1ded);
  put16(card, PCI_DEVICE_ID, 0x107f);
  put16(card, PCI_STATUS, PCI_STATUS_CAP_LIST);
  put16(card, PCI_CLASS_DEVICE, PCI_CLASS_NETWORK_ETHERNET);
  put16(card, PCI_SUBSYSTEM_VENDOR_ID, 0x1ded);
  put16(card, PCI_SUBSYSTEM_ID, 0x107f);
  put32(card, PCI_BASE_ADDRESS_0, card->start);
  put32(card, PCI_BASE_ADDRESS_2, card->start + ERM_BAR_SIZE);
  card->space[PCI_CAPABILITY_LIST] = MSIX_CAP;
  card->space[MSIX_CAP] = PCI_CAP_ID_MSIX;
  put16(card, MSIX_CAP + PCI_MSIX_FLAGS, card->vectors - 1);
  put32(card, MSIX_CAP + PCI_MSIX_TABLE, 0 | 2);
  put32(card, MSIX_CAP + PCI_MSIX_PBA, MSIX_PBA | 2);
}

static struct card* card_of(struct pci_bus* bus) {
  return container_of(bus->sysdata, struct card, sysdata);
}

static int config_read(struct pci_bus* bus, unsigned int devfn, int at, int size, u32* value) {
  *value = ~0;
  if (devfn) return PCIBIOS_DEVICE_NOT_FOUND;
  if (at + size > sizeof(card_of(bus)->space)) return PCIBIOS_BAD_REGISTER_NUMBER;
  *value = 0;
  memcpy(value, card_of(bus)->space + at, size);
  return PCIBIOS_SUCCESSFUL;
}

/* Registers that are not named here are read-only. */
static int config_write(struct pci_bus* bus, unsigned int devfn, int at, int size, u32 value) {
  struct card* card = card_of(bus);
  int number = (at - PCI_BASE_ADDRESS_0) / 4;

  if (devfn) return PCIBIOS_DEVICE_NOT_FOUND;
  if (at >= PCI_BASE_ADDRESS_0 && at < PCI_BASE_ADDRESS_0 + 24) {
    value = size == 4 && bar_size[number] ? value & ~(bar_size[number] - 1) : 0;
    memcpy(card->space + at, &value, 4);
  } else if (at == PCI_COMMAND) {
    put16(card, at, value);
  } else if (at == MSIX_CAP + PCI_MSIX_FLAGS && size == 2) {
    put16(card, at, (value & ~PCI_MSIX_FLAGS_QSIZE) | (card->vectors - 1));
  } else if (at == PCI_INTERRUPT_LINE) {
    card->space[at] = value;
  }
  return PCIBIOS_SUCCESSFUL;
}

/* Interrupts work as in drivers/pci/controller/vmd.c, without a parent interrupt. */
static int no_affinity(struct irq_data* data, const struct cpumask* to, bool force) {
  return -EINVAL;
}
static void compose(struct irq_data* data, struct msi_msg* message) {
  memset(message, 0, sizeof(*message));
}
static struct irq_chip chip = {
    .name = "ermodel",
    .irq_compose_msi_msg = compose,
    .irq_set_affinity = no_affinity,
};
static irq_hw_number_t number_of(struct msi_domain_info* info, msi_alloc_info_t* argument) {
  return argument->desc->msi_index;
}
static int init_irq(struct irq_domain* domain, struct msi_domain_info* info, unsigned int virq,
                    irq_hw_number_t number, msi_alloc_info_t* argument) {
  irq_domain_set_info(domain, virq, number, info->chip, NULL, handle_simple_irq, NULL, NULL);
  return 0;
}
static int prepare(struct irq_domain* domain, struct device* device, int count,
                   msi_alloc_info_t* argument) {
  memset(argument, 0, sizeof(*argument));
  return 0;
}
static void set_desc(msi_alloc_info_t* argument, struct msi_desc* desc) {
  argument->desc = desc;
}
static struct msi_domain_ops msi_ops = {
    .get_hwirq = number_of,
    .msi_init = init_irq,
    .msi_prepare = prepare,
    .set_desc = set_desc,
};
static struct msi_domain_info msi_info = {
    .flags = MSI_FLAG_USE_DEF_DOM_OPS | MSI_FLAG_USE_DEF_CHIP_OPS | MSI_FLAG_PCI_MSIX,
    .ops = &msi_ops,
    .chip = &chip,
};

/* Only the model's thread may call this, as handle_simple_irq drops an interrupt while the same one
 * is handled. Bottom halves are off meanwhile, so the tasklet of the event queue runs right
 * afterwards. */
void card_raise(void* context, unsigned int vector) {
  struct card* card = context;
  int virq = msi_get_virq(&card->pdev->dev, vector);

  if (virq <= 0) return;
  local_bh_disable();
  generic_handle_irq_safe(virq);
  local_bh_enable();
}

static int make_interrupts(struct card* card) {
  struct fwnode_handle* node = irq_domain_alloc_named_id_fwnode("ermodel", card->sysdata.domain);

  card->irqs = node ? pci_msi_create_irq_domain(node, &msi_info, NULL) : NULL;
  if (node && !card->irqs) irq_domain_free_fwnode(node);
  return card->irqs ? 0 : -ENOMEM;
}

void card_free_interrupts(struct card* card) {
  struct fwnode_handle* node = card->irqs ? card->irqs->fwnode : NULL;

  if (!node) return;
  irq_domain_remove(card->irqs);
  irq_domain_free_fwnode(node);
}

static void init(struct card* card) {
  init_space(card);
  card->ops = (struct pci_ops){.read = config_read, .write = config_write};
  card->sysdata = (struct pci_sysdata){.domain = 0x10000 + card->index, .node = NUMA_NO_NODE};
  card->window = (struct resource){.name = "ermodel",
                                   .start = card->start,
                                   .end = card->start + CARD_WINDOW - 1,
                                   .flags = IORESOURCE_MEM};
  card->busn = (struct resource){.name = "ermodel bus", .flags = IORESOURCE_BUS};
}

static void scan(struct card* card) {
  LIST_HEAD(resources);

  pci_add_resource(&resources, &card->window);
  pci_add_resource(&resources, &card->busn);
  card->bus = pci_create_root_bus(NULL, 0, &card->ops, &card->sysdata, &resources);
  if (!card->bus) {
    pci_free_resource_list(&resources);
    return;
  }
  dev_set_msi_domain(&card->bus->dev, card->irqs);
  pci_scan_child_bus(card->bus);
  pci_bus_claim_resources(card->bus);
  card->pdev = pci_get_slot(card->bus, 0);
}

int card_plug(struct card* card) {
  int error;

  init(card);
  error = make_interrupts(card);
  if (error) return error;
  pci_lock_rescan_remove();
  scan(card);
  error = card->pdev && pci_resource_start(card->pdev, 0) == card->start ? 0 : -ENODEV;
  if (!error) {
    smp_store_release(&card->served, true);
    pci_bus_add_devices(card->bus);
  }
  pci_unlock_rescan_remove();
  return error;
}

/* The driver sends commands to the model until it has left. */
void card_unplug(struct card* card) {
  if (!card->bus) return;
  pci_lock_rescan_remove();
  pci_stop_root_bus(card->bus);
  pci_remove_root_bus(card->bus);
  pci_unlock_rescan_remove();
}
