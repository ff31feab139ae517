#!/usr/bin/env bash
# Runs a command with Mesa's software driver for Vulkan as a device of ggml, unless the machine has a GPU for Vulkan.
# A libllama that was compiled for the CPU is given ggml's Vulkan backend: the first argument is Python, which has that libllama.
set -euo pipefail
cd "$(dirname "$0")/.."

driver=$(find /usr/share/vulkan/icd.d /etc/vulkan/icd.d -name 'lvp_icd*.json' -print -quit 2>/dev/null || true)
if [[ -z ${GGML_VK_VISIBLE_DEVICES+x} && -n $driver && -z $(find /dev/dri -name 'renderD*' -print -quit 2>/dev/null) ]]; then
    # ggml leaves devices of the type CPU out unless they are named.
    export VK_ICD_FILENAMES=${VK_ICD_FILENAMES:-$driver} GGML_VK_VISIBLE_DEVICES=0
    if [[ -z ${GGML_BACKEND_PATH:-}${LLAMA_CPP_LIB_PATH:-} ]] && library=$("$1" tools/vulkan_backend.py); then
        export GGML_BACKEND_PATH=$library
    fi
elif [[ -z $driver ]]; then
    echo "tools/lavapipe.sh: there is no software driver for Vulkan; on Debian: apt install mesa-vulkan-drivers" >&2
fi
exec "$@"
