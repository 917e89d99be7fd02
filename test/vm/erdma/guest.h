/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A PCI function of the guest that belongs to the model. */
#pragma once

#include <linux/irqdomain.h>
#include <linux/pci.h>

#include "layout.h"
#include "model.h"

#define CARD_WINDOW 0x200000u
#define CARD_BAR2_SIZE 0x1000u

struct card {
  int index;
  unsigned long start;
  unsigned int vectors;
  struct pci_sysdata sysdata;
  struct resource window, busn;
  struct pci_ops ops;
  struct irq_domain* irqs;
  struct pci_bus* bus;
  struct pci_dev* pdev;
  u8 space[256]; /* configuration space */
  void __iomem* bar;
  struct erm_device* model;
  bool served; /* pdev is known, so that interrupts can be raised */
};

/* guest_pci.c */
int card_plug(struct card* card); /* the driver probes meanwhile, and waits for its commands */
void card_unplug(struct card* card);
void card_raise(void* context, unsigned int vector);
void card_free_interrupts(struct card* card);
