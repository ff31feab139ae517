#define STOKER_ISA dotprod
#include "simd_neon.hpp"
// clang-format off: the layer comes first
#include "matmul.inl"
#include "table.inl"
