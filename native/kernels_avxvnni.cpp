#define STOKER_ISA avxvnni
#include "simd_avx2.hpp"
// clang-format off: the layer comes first
#include "matmul.inl"
#include "table.inl"
