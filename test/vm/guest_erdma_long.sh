#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# `run.sh erdma-long` runs it: guest_erdma.sh with all settings of the model and 20 reloads.
long=yes
# shellcheck source=test/vm/guest_erdma.sh
. "$1/test/vm/guest_erdma.sh"
