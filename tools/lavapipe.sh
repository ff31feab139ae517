#!/usr/bin/env bash
# Runs a command with Mesa's software driver for Vulkan as a device of ggml, unless the machine has a GPU for Vulkan.
set -euo pipefail

driver=$(find /usr/share/vulkan/icd.d /etc/vulkan/icd.d -name 'lvp_icd*.json' -print -quit 2>/dev/null || true)
if [[ -z ${GGML_VK_VISIBLE_DEVICES+x} && -n $driver && -z $(find /dev/dri -name 'renderD*' -print -quit 2>/dev/null) ]]; then
    # ggml leaves devices of the type CPU out unless they are named.
    export VK_ICD_FILENAMES=$driver GGML_VK_VISIBLE_DEVICES=0
fi
exec "$@"
