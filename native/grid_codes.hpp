// Codes and scales of the GGUF types whose inputs are entries of a grid (grids.hpp), read from a block of the file.
#pragma once

#include <cstdint>

namespace stoker {

// Codes of the 32 inputs of block `b` of the file block at `p`, as the type's table (formats.hpp) takes them.
// Returns whether the type is one of these; nothing is written otherwise.
bool read_grid_codes(int32_t type, const uint8_t* p, int b, uint8_t* out);

// The scales of output `o` of the file block at `p`, to their places in a tile's plane. Returns as above.
bool put_grid_scales(int32_t type, const uint8_t* p, uint8_t* plane, int o);

}  // namespace stoker
