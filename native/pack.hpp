// From the rows of a GGUF tensor to the packed matrix that the kernels read (its layout: formats.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoker {

// Whether the kernels take this tensor type with rows of `cols` inputs.
bool can_pack(int32_t type, int32_t cols);

// Bytes of one row in the file, and of the whole packed matrix (a multiple of 64). Requires can_pack.
size_t file_row_bytes(int32_t type, int32_t cols);
size_t packed_bytes(int32_t type, int32_t rows, int32_t cols);

// Packs tiles [tile0, tile1) of `source` (rows x file_row_bytes, as in the file) into their places in `packed`. Outputs
// beyond `rows` become zeros. Any bytes are accepted. Threads may pack disjoint ranges of tiles at the same time.
void pack(int32_t type, const uint8_t* source, int32_t rows, int32_t cols, uint8_t* packed, int32_t tile0, int32_t tile1);

}  // namespace stoker
