#include "simd_scalar.hpp"
// clang-format off: the layer comes first
#include "matmul.inl"
#include "table.inl"
