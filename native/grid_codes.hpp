// What a tile has of the GGUF types whose inputs are entries of a grid (grids.hpp), read from a block of the file.
#pragma once

#include <cstdint>

#include "formats.hpp"

namespace stoker {

// Entries, further bits and signs of output `o` of block `b` (of 32 inputs) of the file block at `p`, to their places in `out`,
// the codes of a block of a tile, which are 0 at first.
void put_grid_codes(const Format& format, const uint8_t* p, int b, int o, uint8_t* out);

// The scales of output `o` of the file block at `p`, to their places in a tile's plane.
void put_grid_scales(int32_t type, const uint8_t* p, uint8_t* plane, int o);

}  // namespace stoker
