// A table of magnitudes m[0] < m[1] < ... has the codes | ... -m[1] -m[0] m[0] m[1] ... |, so that a sign mirrors the code.
//
//   IQ2_XXS  d | 8 blocks: 4 entries, 4 x 7 signs, a scale of 4 bits
//   IQ2_XS   d | 32 x (entry of 9 bits, 7 signs) | 16 scales of 4 bits
//   IQ2_S    d | 32 x 8 bits of entries | 32 x 8 signs | 32 x 2 bits of entries | 16 scales
//   IQ3_XXS  d | 64 entries | 8 blocks: 4 x 7 signs, a scale of 4 bits
//   IQ3_S    d | 64 x 8 bits of entries | 64 x 1 bit of entries | 32 x 8 signs | 8 scales of 4 bits
//   IQ1_S    d | 32 x 8 bits of entries | 8 blocks: 4 x 3 bits of entries, a scale of 3 bits, a shift
//   IQ1_M    32 x 8 bits of entries | 32 x (3 bits of entries, a shift) | 4 x (4 scales of 3 bits, a quarter of d)
#include "grid_codes.hpp"

#include <bit>
#include <cstring>

#include "grids.hpp"

namespace stoker {

namespace {

constexpr int kIQ2XXS = 16, kIQ2XS = 17, kIQ3XXS = 18, kIQ1S = 19, kIQ3S = 21, kIQ2S = 22, kIQ1M = 29;
constexpr int kMagnitudes2 = 3, kMagnitudes3 = 8;  // of IQ2, of IQ3

template <class T> T load(const uint8_t* p) {
    T out;
    std::memcpy(&out, p, sizeof(T));
    return out;
}

// Seven signs, the eighth of which makes their number even.
uint32_t eight_signs(uint32_t seven) { return (seven & 127) | uint32_t(std::popcount(seven & 127) & 1) << 7; }

void put_mirrored(int entry, int bits, int magnitudes, uint32_t signs, int count, uint8_t* out) {
    for (int i = 0; i < count; ++i) {
        const int m = entry >> (bits * i) & ((1 << bits) - 1);
        out[i] = uint8_t(signs >> i & 1 ? magnitudes - 1 - m : magnitudes + m);
    }
}

void put_iq2(int entry, uint32_t signs, uint8_t* out) { put_mirrored(entry, 2, kMagnitudes2, signs, 8, out); }

void put_iq3(const uint16_t* grid, int first, int second, uint32_t signs, uint8_t* out) {
    put_mirrored(grid[first], 3, kMagnitudes3, signs, 4, out);
    put_mirrored(grid[second], 3, kMagnitudes3, signs >> 4, 4, out + 4);
}

// -1, 0 or 1, an eighth more or less.
void put_iq1(int index, bool is_less, uint8_t* out) {
    for (int i = 0; i < 8; ++i) {
        out[i] = uint8_t((kGridIQ1[index] >> (2 * i) & 3) * 2 + !is_less);
    }
}

// Eight inputs, the run `r` of block `b`.
// ---------------------------------------------------------------------------------------------------------------------

void read_iq2(int32_t type, const uint8_t* p, int b, int r, uint8_t* out) {
    if (type == kIQ2XXS) {
        const uint8_t* block = p + 2 + 8 * b;
        return put_iq2(kGridIQ2XXS[block[r]], eight_signs(load<uint32_t>(block + 4) >> (7 * r)), out);
    }
    if (type == kIQ2XS) {
        const auto both = load<uint16_t>(p + 2 + 8 * b + 2 * r);
        return put_iq2(kGridIQ2XS[both & 511], eight_signs(both >> 9), out);
    }
    const int high = p[66 + b] >> (2 * r) & 3;
    put_iq2(kGridIQ2S[p[2 + 4 * b + r] | high << 8], p[34 + 4 * b + r], out);
}

void read_iq3(int32_t type, const uint8_t* p, int b, int r, uint8_t* out) {
    const uint8_t* entries = p + 2 + 8 * b + 2 * r;
    if (type == kIQ3XXS) {
        const uint32_t signs = eight_signs(load<uint32_t>(p + 66 + 4 * b) >> (7 * r));
        return put_iq3(kGridIQ3XXS, entries[0], entries[1], signs, out);
    }
    const int high = p[66 + b] >> (2 * r);
    put_iq3(kGridIQ3S, entries[0] | (high & 1) << 8, entries[1] | (high >> 1 & 1) << 8, p[74 + 4 * b + r], out);
}

void read_iq1(int32_t type, const uint8_t* p, int b, int r, uint8_t* out) {
    if (type == kIQ1S) {
        const int more = load<uint16_t>(p + 34 + 2 * b);
        return put_iq1(p[2 + 4 * b + r] | (more >> (3 * r) & 7) << 8, more >> 15, out);
    }
    const int more = p[32 + 2 * b + r / 2] >> (r % 2 * 4);
    put_iq1(p[4 * b + r] | (more & 7) << 8, more >> 3 & 1, out);
}

// Scale `i` of a block of the file, without d: an odd number.
int scale_of(int32_t type, const uint8_t* p, int i) {
    const auto nibble = [&](int at) { return p[at + i / 2] >> (i % 2 * 4) & 15; };
    switch (type) {
        case kIQ2XXS: return 2 * (p[2 + 8 * i + 7] >> 4) + 1;
        case kIQ2XS: return 2 * nibble(66) + 1;
        case kIQ2S: return 2 * nibble(74) + 1;
        case kIQ3XXS: return 2 * (p[66 + 4 * i + 3] >> 4) + 1;
        case kIQ3S: return 2 * nibble(106) + 1;
        case kIQ1S: return 2 * (p[34 + 2 * i + 1] >> 4 & 7) + 1;
        default: return 2 * (load<uint16_t>(p + 48 + i / 4 * 2) >> (3 * (i % 4)) & 7) + 1;
    }
}

uint16_t factor_of(int32_t type, const uint8_t* p) {
    if (type != kIQ1M) {
        return load<uint16_t>(p);
    }
    return uint16_t(p[49] >> 4 | (p[51] >> 4) << 4 | (p[53] >> 4) << 8 | (p[55] >> 4) << 12);
}

using Read = void (*)(int32_t, const uint8_t*, int, int, uint8_t*);

Read reader(int32_t type) {
    switch (type) {
        case kIQ2XXS: case kIQ2XS: case kIQ2S: return read_iq2;
        case kIQ3XXS: case kIQ3S: return read_iq3;
        case kIQ1S: case kIQ1M: return read_iq1;
        default: return nullptr;
    }
}

}  // namespace

bool read_grid_codes(int32_t type, const uint8_t* p, int b, uint8_t* out) {
    const Read read = reader(type);
    for (int r = 0; read != nullptr && r < 4; ++r) {
        read(type, p, b, r, out + 8 * r);
    }
    return read != nullptr;
}

bool put_grid_scales(int32_t type, const uint8_t* p, uint8_t* plane, int o) {
    if (reader(type) == nullptr) {
        return false;
    }
    const uint16_t d = factor_of(type, p);
    std::memcpy(plane + 2 * o, &d, 2);
    const bool is_of_16 = type == kIQ2XS || type == kIQ2S || type == kIQ1M;
    for (int i = 0; i < (is_of_16 ? 16 : 8); ++i) {
        plane[32 + 16 * i + o] = uint8_t(scale_of(type, p, i));
    }
    return true;
}

}  // namespace stoker
