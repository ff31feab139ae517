// Packing: read a block of an output from the file's layout, spread it over the tile's planes.
#include "pack.hpp"

#include <algorithm>
#include <cstring>

#include "formats.hpp"
#include "grid_codes.hpp"
#include "kernels.hpp"

namespace stoker {

namespace {

uint32_t word(const uint8_t* p) {
    uint32_t out;
    std::memcpy(&out, p, 4);
    return out;
}

// Codes of a block: out[k] for its 32 inputs, before any table; without sign (the format's offset added), but bytes as they are.
// `out` is 0 at first.
// ---------------------------------------------------------------------------------------------------------------------

// Sixteen bytes: low nibbles are inputs 0..15, high nibbles 16..31.
void split_nibbles(const uint8_t* p, uint8_t* out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = p[i] & 15;
        out[i + 16] = p[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* p, uint8_t* out) {
    const uint32_t bits = word(p);
    for (int i = 0; i < 32; ++i) {
        out[i] |= uint8_t((bits >> i & 1) << 4);
    }
}

// Thirty-two bytes, `mask` bits of each from `shift` on, moved up by `up`.
void add_bits(const uint8_t* p, int shift, int mask, int up, uint8_t* out) {
    for (int i = 0; i < 32; ++i) {
        out[i] |= uint8_t((p[i] >> shift & mask) << up);
    }
}

// TQ1_0: five inputs a byte in base 3, the first the most significant one, a byte being a fraction of 256:
//
//   32 bytes: inputs i, i + 32, ... i + 128 | 16 bytes: 160 + i, ... i + 64 | 4 bytes: 240 + i, ... i + 12
//
// Codes are one more than digits.
void read_ternary(const uint8_t* p, int b, uint8_t* out) {
    constexpr uint8_t powers[] = {1, 3, 9, 27, 81};
    for (int i = 0; i < 32; ++i) {
        const int half = 2 * b + i / 16;
        const int at = half < 10 ? i : half < 15 ? 32 + i % 16 : 48 + i % 4;
        const int digit = half < 10 ? b : half < 15 ? half - 10 : i % 16 / 4;
        out[i] = uint8_t(1 + (uint8_t(p[at] * powers[digit]) * 3 >> 8));
    }
}

// NVFP4: of each sixteen inputs eight bytes.
void split_eights(const uint8_t* p, uint8_t* out) {
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 8; ++i) {
            out[16 * half + i] = p[8 * half + i] & 15;
            out[16 * half + 8 + i] = p[8 * half + i] >> 4;
        }
    }
}

// Q1_0, Q2_0: `count` bits an input, the first input in the lowest bits; one bit means the code 0 or 2.
void read_small(const uint8_t* p, int count, uint8_t* out) {
    for (int i = 0; i < 32; ++i) {
        const int at = count * i, code = p[at / 8] >> at % 8;
        out[i] = uint8_t(count == 1 ? (code & 1) << 1 : code & 3);
    }
}

// Block `b` (of 32 inputs) of the file block at `p`.
void read_codes(int32_t type, const uint8_t* p, int b, uint8_t* out) {
    switch (type) {
        case 2: case 20: return split_nibbles(p + 2, out);   // Q4_0, IQ4_NL: d, nibbles
        case 3: return split_nibbles(p + 4, out);            // Q4_1: d, m, nibbles
        case 39: return split_nibbles(p + 1, out);           // MXFP4: e, nibbles
        case 40: return split_eights(p + 4 + 16 * b, out);   // NVFP4: scales, nibbles
        case 41: return read_small(p + 2 + 4 * b, 1, out);   // Q1_0: d, signs
        case 42: return read_small(p + 2 + 8 * b, 2, out);   // Q2_0: d, codes
        case kNibbles: return split_nibbles(p + 4, out);     // f, nibbles
        case 23: return split_nibbles(p + 8 + 16 * b, out);  // IQ4_XS: d, high scales, low scales, nibbles
        case 6:                                              // Q5_0: d, fifth bits, nibbles
            split_nibbles(p + 6, out);
            return add_fifth_bits(p + 2, out);
        case 7:                                              // Q5_1: d, m, fifth bits, nibbles
            split_nibbles(p + 8, out);
            return add_fifth_bits(p + 4, out);
        case 8: std::memcpy(out, p + 2, 32); return;         // Q8_0: d, bytes
        case kBytes: std::memcpy(out, p + 4, 32); return;    // f, bytes
        case kBytes16: std::memcpy(out, p + 8, 32); return;  // f[2], bytes
        case 10: return add_bits(p + 16 + b / 4 * 32, b % 4 * 2, 3, 0, out);  // Q2_K: scales, codes, d, m
        case 34: return read_ternary(p, b, out);                              // TQ1_0: codes, d
        case 35: return add_bits(p + b / 4 * 32, b % 4 * 2, 3, 0, out);       // TQ2_0: codes, d
        case 11:                                                              // Q3_K: third bits, codes, scales, d
            add_bits(p + 32 + b / 4 * 32, b % 4 * 2, 3, 0, out);
            return add_bits(p, b, 1, 2, out);
        case 12: return add_bits(p + 16 + b / 2 * 32, b % 2 * 4, 15, 0, out);  // Q4_K: d, m, scales, nibbles
        case 13:                                                               // Q5_K: d, m, scales, fifth bits, nibbles
            add_bits(p + 48 + b / 2 * 32, b % 2 * 4, 15, 0, out);
            return add_bits(p + 16, b, 1, 4, out);
        case 14:                                                               // Q6_K: nibbles, upper bits, scales, d
            add_bits(p + b / 4 * 64 + b % 2 * 32, b % 4 / 2 * 4, 15, 0, out);
            return add_bits(p + 128 + b / 4 * 32, b % 4 * 2, 3, 4, out);
    }
}

// Scales of a unit of output `o`, to their places in the tile's plane.
// ---------------------------------------------------------------------------------------------------------------------

void put_half(uint8_t* plane, int o, const uint8_t* half, bool negative = false) {
    plane[2 * o] = half[0];
    plane[2 * o + 1] = negative ? half[1] ^ 0x80 : half[1];
}

// Q4_K, Q5_K: eight scales and eight minima of 6 bits in 12 bytes.
void put_scales_min(uint8_t* plane, int o, const uint8_t* p) {
    for (int i = 0; i < 4; ++i) {
        plane[16 * i + o] = p[i] & 63;
        plane[16 * (i + 4) + o] = uint8_t((p[i + 8] & 15) | (p[i] >> 6 << 4));
        plane[128 + 16 * i + o] = p[i + 4] & 63;
        plane[128 + 16 * (i + 4) + o] = uint8_t((p[i + 8] >> 4) | (p[i + 4] >> 6 << 4));
    }
}

// Q3_K: sixteen scales of 6 bits, offset 32, in 12 bytes.
void put_scales_q3(uint8_t* plane, int o, const uint8_t* p) {
    for (int i = 0; i < 16; ++i) {
        const int low = p[i % 8] >> (i / 8 * 4) & 15, high = p[8 + i % 4] >> (i / 4 * 2) & 3;
        plane[16 * i + o] = uint8_t((low | high << 4) - 32);
    }
}

// IQ4_XS: eight scales, offset 32: four low bits each, then two high bits each.
void put_scales_iq4(uint8_t* plane, int o, const uint8_t* high, const uint8_t* low) {
    const int bits = high[0] | high[1] << 8;
    for (int i = 0; i < 8; ++i) {
        plane[16 * i + o] = uint8_t(((low[i / 2] >> (i % 2 * 4) & 15) | (bits >> (2 * i) & 3) << 4) - 32);
    }
}

void put_bytes(uint8_t* plane, int o, const uint8_t* p) {
    for (int i = 0; i < 16; ++i) {
        plane[16 * i + o] = p[i];
    }
}

void put_single(uint8_t* plane, int o, const uint8_t* p) {
    uint32_t bits = word(p);
    if ((bits & 0x7f800000) != 0x7f800000) {
        bits = (bits + 2) & ~3u;  // 22 of 24 bits
    }
    std::memcpy(plane + 4 * o, &bits, 4);
}

// NVFP4: four bits of an exponent, three of a fraction. As a half float half of it, since the table has doubled values.
void put_small_float(uint8_t* plane, int o, uint8_t byte) {
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    int bits = (exponent + 7) << 10 | fraction << 7;
    if (byte == 0x7F || (exponent == 0 && fraction == 0)) {
        bits = 0;
    } else if (exponent == 0) {  // fraction * 2^-10
        const int up = fraction >= 4 ? 2 : fraction >= 2 ? 1 : 0;
        bits = (5 + up) << 10 | (fraction << (10 - up) & 0x3FF);
    }
    plane[2 * o] = uint8_t(bits);
    plane[2 * o + 1] = uint8_t(bits >> 8);
}

// Of block `b` of the file block at `p`, where a unit is shorter than that.
void put_scales(int32_t type, const uint8_t* p, int b, uint8_t* plane, int o) {
    switch (type) {
        case 40:
            put_small_float(plane, o, p[2 * b]);
            return put_small_float(plane + 32, o, p[2 * b + 1]);
        case 39: plane[o] = p[0]; return;
        case kNibbles: case kBytes: return put_single(plane, o, p);
        case kBytes16: put_single(plane, o, p); return put_single(plane + 64, o, p + 4);
        case 3: case 7: put_half(plane + 32, o, p + 2); return put_half(plane, o, p);
        case 10:
            put_half(plane, o, p + 80);
            put_half(plane + 32, o, p + 82, true);
            return put_bytes(plane + 64, o, p);
        case 11: put_half(plane, o, p + 108); return put_scales_q3(plane + 32, o, p + 96);
        case 12: case 13:
            put_half(plane, o, p);
            put_half(plane + 32, o, p + 2, true);
            return put_scales_min(plane + 64, o, p + 4);
        case 14: put_half(plane, o, p + 208); return put_bytes(plane + 32, o, p + 192);
        case 34: return put_half(plane, o, p + 52);
        case 35: return put_half(plane, o, p + 64);
        case 23: put_half(plane, o, p); return put_scales_iq4(plane + 32, o, p + 2, p + 4);
        default: return put_half(plane, o, p);
    }
}

// Planes of a block of a tile, from its codes [group][output][4].
// ---------------------------------------------------------------------------------------------------------------------

void write_nibbles(const uint8_t (*w)[64], uint8_t* out) {
    for (int g = 0; g < 4; ++g) {
        for (int i = 0; i < 64; ++i) {
            out[64 * g + i] = uint8_t((w[g][i] & 15) | w[g + 4][i] << 4);
        }
    }
}

void write_pairs(const uint8_t (*w)[64], int shift, uint8_t* out) {
    for (int j = 0; j < 2; ++j) {
        for (int i = 0; i < 64; ++i) {
            const auto pair = [&](int g) { return (w[4 * j + g][i] >> shift & 3) << (2 * g); };
            out[64 * j + i] = uint8_t(pair(0) | pair(1) | pair(2) | pair(3));
        }
    }
}

void write_bits(const uint8_t (*w)[64], int shift, uint8_t* out) {
    std::memset(out, 0, 64);
    for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 64; ++i) {
            out[i] |= uint8_t((w[g][i] >> shift & 1) << g);
        }
    }
}

// Block `j` of four, which are written in order.
void write_ternary(const uint8_t (*w)[64], int j, uint8_t* four) {
    for (int i = 0; i < 64; ++i) {
        const int digits = (((w[0][i] * 3 + w[1][i]) * 3 + w[2][i]) * 3 + w[3][i]) * 3 + w[4][i] - 121;  // of ones
        four[64 * j + i] = uint8_t((digits * 256 + 242) / 243);
    }
    for (int g = 0; g < 3; ++g) {
        for (int i = 0; i < 64; ++i) {
            const int others = j == 0 ? 0 : four[64 * (4 + g) + i];
            four[64 * (4 + g) + i] = uint8_t(others | w[5 + g][i] << (2 * j));
        }
    }
}

// `b` is the number of the block in the file's, `out` its part of the plane.
void write_codes(const Format& f, const uint8_t (*w)[64], int b, uint8_t* out) {
    switch (f.codes) {
        case Codes::ternary: return write_ternary(w, b % 4, out - b % 4 * f.code_bytes());
        case Codes::nibble: return write_nibbles(w, out);
        case Codes::nibble1: write_nibbles(w, out); return write_bits(w, 4, out + 256);
        case Codes::nibble2: write_nibbles(w, out); return write_pairs(w, 4, out + 256);
        case Codes::one: return write_bits(w, 1, out);
        case Codes::two: return write_pairs(w, 0, out);
        case Codes::two1: write_pairs(w, 0, out); return write_bits(w, 2, out + 128);
        default: std::memcpy(out, w, 512);
    }
}

// Tiles
// ---------------------------------------------------------------------------------------------------------------------

void pack_grid_block(const Format& f, const uint8_t* source, size_t row_bytes, int outputs, int b, uint8_t* out) {
    std::memset(out, 0, f.code_bytes());
    for (int o = 0; o < outputs; ++o) {
        put_grid_codes(f, source + o * row_bytes, b, o, out);
    }
}

void pack_block(const Format& f, const uint8_t* source, size_t row_bytes, int outputs, int b, uint8_t* out) {
    alignas(64) uint8_t w[8][64] = {};
    for (int o = 0; o < outputs; ++o) {
        alignas(64) uint8_t code[32] = {};
        read_codes(f.type, source + o * row_bytes, b, code);
        for (int g = 0; g < 8; ++g) {
            std::memcpy(&w[g][4 * o], code + 4 * g, 4);
        }
    }
    write_codes(f, w, b, out);
}

void pack_quantised(const Format& f, const uint8_t* source, int outputs, int32_t cols, uint8_t* tile) {
    const size_t row_bytes = size_t(cols / f.file_inputs) * f.file_bytes;
    uint8_t* scales = tile + f.codes_plane(cols);
    const int blocks_in_file_block = f.file_inputs / 32, blocks_in_unit = f.unit_inputs() / 32;
    const bool is_grid = f.codes == Codes::grid;
    for (int32_t block = 0; block < cols / 32; ++block) {
        const uint8_t* from = source + size_t(block / blocks_in_file_block) * f.file_bytes;
        const int b = block % blocks_in_file_block;
        (is_grid ? pack_grid_block : pack_block)(f, from, row_bytes, outputs, b, tile + size_t(block) * f.code_bytes());
        uint8_t* unit = scales + size_t(block / blocks_in_unit) * f.scale_bytes();
        for (int o = 0; o < outputs && block % blocks_in_unit == 0; ++o) {
            is_grid ? put_grid_scales(f.type, from + o * row_bytes, unit, o) : put_scales(f.type, from + o * row_bytes, b, unit, o);
        }
    }
}

void pack_floats(const Format& f, const uint8_t* source, int outputs, int32_t cols, uint8_t* tile) {
    const int size = f.file_bytes;
    for (int o = 0; o < outputs; ++o) {
        const uint8_t* row = source + size_t(o) * cols * size;
        for (int32_t k = 0; k < cols; ++k) {
            std::memcpy(tile + (size_t(k) * kTile + o) * size, row + size_t(k) * size, size);
        }
    }
}

}  // namespace

bool can_pack(int32_t type, int32_t cols) {
    const Format* f = find_format(type);
    return f != nullptr && cols > 0 && cols % f->file_inputs == 0;
}

size_t file_row_bytes(int32_t type, int32_t cols) {
    const Format& f = *find_format(type);
    return size_t(cols / f.file_inputs) * f.file_bytes;
}

size_t packed_bytes(int32_t type, int32_t rows, int32_t cols) {
    return find_format(type)->tile_bytes(cols) * ((size_t(rows) + kTile - 1) / kTile);
}

void pack(int32_t type, const uint8_t* source, int32_t rows, int32_t cols, uint8_t* packed) {
    const Format& f = *find_format(type);
    for (int32_t t = 0; t < divided_up(rows, kTile); ++t) {
        const int outputs = std::min(rows - t * kTile, kTile);
        uint8_t* tile = packed + t * f.tile_bytes(cols);
        const uint8_t* from = source + size_t(t) * kTile * file_row_bytes(type, cols);
        if (outputs < kTile) {
            std::memset(tile, 0, f.tile_bytes(cols));
        }
        std::memset(tile + f.tile_bytes(cols) - 64, 0, 64);  // the pad: packing is a function of the source alone
        f.is_float() ? pack_floats(f, from, outputs, cols, tile) : pack_quantised(f, from, outputs, cols, tile);
    }
}

}  // namespace stoker
