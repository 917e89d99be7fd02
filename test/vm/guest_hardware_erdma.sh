#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# `run.sh hardware-erdma` runs it: guest_hardware.sh on the model of the NIC.
modelled=yes
# shellcheck source=test/vm/guest_hardware.sh
. "$1/test/vm/guest_hardware.sh"
