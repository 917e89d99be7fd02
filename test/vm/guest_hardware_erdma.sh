#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# As guest_hardware.sh, on the modelled adapter: what `run.sh hardware-erdma` runs.
modelled=yes
# shellcheck source=test/vm/guest_hardware.sh
. "$1/test/vm/guest_hardware.sh"
