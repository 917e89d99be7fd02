# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# `. FOLDER/env.sh` makes programs that this shell starts use erdma from the folder of this file, wherever it is. For bash and zsh.
erdma_folder=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)
export FI_PROVIDER=erdma FI_PROVIDER_PATH=$erdma_folder/lib/libfabric PATH=$erdma_folder/bin:$PATH
export MANPATH=$erdma_folder/share/man:${MANPATH:-} # the empty end stands for the folders of the system
if [ -e "$erdma_folder/lib/libfabric.so.1" ]; then
  export LD_LIBRARY_PATH=$erdma_folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
unset erdma_folder
