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

// Packs `source` (rows x file_row_bytes, as in the file); outputs beyond `rows` become zeros. Any bytes are accepted. Tiles
// know nothing of each other: threads may pack rows from any multiple of 16 on as if they were a matrix.
void pack(int32_t type, const uint8_t* source, int32_t rows, int32_t cols, uint8_t* packed);

}  // namespace stoker
