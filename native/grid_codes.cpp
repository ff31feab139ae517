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

namespace stoker {

namespace {

constexpr int kIQ2XXS = 16, kIQ2XS = 17, kIQ3XXS = 18, kIQ1S = 19, kIQ3S = 21, kIQ2S = 22, kIQ1M = 29;

template <class T> T load(const uint8_t* p) {
    T out;
    std::memcpy(&out, p, sizeof(T));
    return out;
}

// Seven signs, the eighth of which makes their number even.
uint32_t eight_signs(uint32_t seven) { return (seven & 127) | uint32_t(std::popcount(seven & 127) & 1) << 7; }

// The index of entry `e` of block `b`; of IQ1 with a twelfth bit for an eighth less.
int entry_of(int32_t type, const uint8_t* p, int b, int e) {
    switch (type) {
        case kIQ2XXS: return p[2 + 8 * b + e];
        case kIQ2XS: return load<uint16_t>(p + 2 + 8 * b + 2 * e) & 511;
        case kIQ2S: return p[2 + 4 * b + e] | (p[66 + b] >> (2 * e) & 3) << 8;
        case kIQ3XXS: return p[2 + 8 * b + e];
        case kIQ3S: return p[2 + 8 * b + e] | (p[66 + b] >> e & 1) << 8;
        case kIQ1S: {
            const int more = load<uint16_t>(p + 34 + 2 * b);
            return p[2 + 4 * b + e] | (more >> (3 * e) & 7) << 8 | (more >> 15) << 11;
        }
        default: return p[4 * b + e] | (p[32 + 2 * b + e / 2] >> (e % 2 * 4) & 15) << 8;
    }
}

// The signs of the eight inputs of run `r` of block `b`, the first in the lowest bit.
uint32_t signs_of(int32_t type, const uint8_t* p, int b, int r) {
    switch (type) {
        case kIQ2XXS: return eight_signs(load<uint32_t>(p + 6 + 8 * b) >> (7 * r));
        case kIQ2XS: return eight_signs(load<uint16_t>(p + 2 + 8 * b + 2 * r) >> 9);
        case kIQ2S: return p[34 + 4 * b + r];
        case kIQ3XXS: return eight_signs(load<uint32_t>(p + 66 + 4 * b) >> (7 * r));
        case kIQ3S: return p[74 + 4 * b + r];
        default: return 0;
    }
}

// Scale `i` of a block of the file, without d, as s of the odd number 2 s + 1.
int scale_of(int32_t type, const uint8_t* p, int i) {
    const auto nibble = [&](int at) { return p[at + i / 2] >> (i % 2 * 4) & 15; };
    switch (type) {
        case kIQ2XXS: return p[2 + 8 * i + 7] >> 4;
        case kIQ2XS: return nibble(66);
        case kIQ2S: return nibble(74);
        case kIQ3XXS: return p[66 + 4 * i + 3] >> 4;
        case kIQ3S: return nibble(106);
        case kIQ1S: return p[34 + 2 * i + 1] >> 4 & 7;
        default: return load<uint16_t>(p + 48 + i / 4 * 2) >> (3 * (i % 4)) & 7;
    }
}

uint16_t factor_of(int32_t type, const uint8_t* p) {
    if (type != kIQ1M) {
        return load<uint16_t>(p);
    }
    return uint16_t(p[49] >> 4 | (p[51] >> 4) << 4 | (p[53] >> 4) << 8 | (p[55] >> 4) << 12);
}

}  // namespace

void put_grid_codes(const Format& format, const uint8_t* p, int b, int o, uint8_t* out) {
    uint8_t* further = out + 16 * format.entries();
    for (int e = 0; e < format.entries(); ++e) {
        const int entry = entry_of(format.type, p, b, e), at = e * format.further_bits();
        out[16 * e + o] = uint8_t(entry);
        if (format.further_bits() > 0) {
            further[16 * (at / 8) + o] |= uint8_t(entry >> 8 << at % 8);
        }
    }
    if (format.grid == Grid::iq1) {
        return;
    }
    for (int i = 0; i < 32; ++i) {
        const uint32_t sign = signs_of(format.type, p, b, i / 8) >> (i % 8) & 1;
        out[format.signs_at() + 4 * o + i % 4] |= uint8_t(sign << (i / 4));
    }
}

void put_grid_scales(int32_t type, const uint8_t* p, uint8_t* plane, int o) {
    const uint16_t d = factor_of(type, p);
    std::memcpy(plane + 2 * o, &d, 2);
    const bool is_of_16 = type == kIQ2XS || type == kIQ2S || type == kIQ1M;
    for (int i = 0; i < (is_of_16 ? 8 : 4); ++i) {
        plane[32 + 16 * i + o] = uint8_t(scale_of(type, p, 2 * i) | scale_of(type, p, 2 * i + 1) << 4);
    }
}

}  // namespace stoker
