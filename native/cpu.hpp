// Which tables of kernels this build has, and which of them this CPU can run.
#pragma once

#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace stoker {

// The tables this CPU can run, slowest first; "scalar" is always there.
const std::vector<const Kernels*>& available_kernels();

// The fastest table, or the one that the environment variable STOKER_NATIVE_KERNELS names.
// Throws std::runtime_error if that one cannot run here.
const Kernels& best_kernels();

// The table called `name`, or the best one if the name is empty. Throws std::invalid_argument if there is none.
const Kernels& kernels_or_best(std::string_view name);

}  // namespace stoker
