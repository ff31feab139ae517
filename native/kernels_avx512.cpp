#include "simd_avx512.hpp"
// clang-format off: the layer comes first
#include "matmul.inl"
#include "table.inl"
