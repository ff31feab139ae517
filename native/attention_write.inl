// Writing keys and values, of every type, at one position. Included once per instruction set, after attention_codes.inl.
namespace stoker::STOKER_ISA {

#ifndef STOKER_STORE_FOURTH
// The low bytes of x as every fourth of 64 bytes, from `first` on. Touches no other one: they may be another thread's.
inline void store_fourth(uint8_t* line, int32_t first, i32x16 x) {
    alignas(16) int8_t bytes[16];
    store_i8(bytes, x);
    for (int i = 0; i < 16; ++i) {
        line[first + 4 * i] = uint8_t(bytes[i]);
    }
}
#endif

// A key's bytes lie by fours, a value's alone.
inline void write_q8(const KvLayout& kv, uint8_t* plane, const float* x, int32_t slot, bool is_key) {
    auto* scales = reinterpret_cast<float*>(plane + size_t(kv.head_size) * kPageTokens);
    for (int32_t d = 0; d < kv.head_size; d += 16) {
        const int32_t group = d / kv.group();
        const float scale = largest_of(x + group * kv.group(), kv.group()) / 127.0f;
        scales[group * kPageTokens + slot] = scale;
        const f32x16 steps = set1(scale > 1e-30f ? 1.0f / scale : 0.0f);
        const i32x16 code = add_i32(to_i32(mul(load(x + d), steps)), set1_i32(128));
        uint8_t* at = plane + d * kPageTokens;
        if (!is_key) {
            store_fourth(at + slot / 4 * 64, slot % 4, code);
            continue;
        }
        alignas(16) int8_t bytes[16];
        store_i8(bytes, code);
        for (int i = 0; i < 4; ++i) {
            __builtin_memcpy(at + i * 128 + slot * 4, bytes + i * 4, 4);
        }
    }
}

// A float of 16 bits, the upper half of one of 32, and the one that is nearest to x.
inline float from_bf16(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
inline uint16_t to_bf16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return uint16_t((bits + 0x8000) >> 16);
}

// Codes of the elements of a group, by that scale of some for which they are closest to them.
struct FourBits {
    alignas(64) int32_t codes[32];
    uint16_t scale;  // bf16
};

inline float four_bit_error(const float* x, int32_t group, float scale, int32_t* codes) {
    const f32x16 steps = set1(1.0f / scale);
    f32x16 error = set1(0);
    for (int32_t d = 0; d < group; d += 16) {
        const f32x16 rounded = max(set1(-8), min(set1(7), to_f32(to_i32(mul(load(x + d), steps)))));
        const f32x16 off = sub(load(x + d), mul(rounded, set1(scale)));
        error = fma(off, off, error);
        store_i32(codes + d, to_i32(rounded));
    }
    return reduce_add(error);
}

inline void round_to_four_bits(const float* x, int32_t group, FourBits& best) {
    float most = x[0];
    for (int32_t d = 1; d < group; ++d) {
        most = __builtin_fabsf(x[d]) > __builtin_fabsf(most) ? x[d] : most;
    }
    const float largest = largest_of(x, group);
    best.scale = to_bf16(largest == largest ? 0 : largest);
    for (int32_t& code : best.codes) code = 0;
    if (!(largest >= 1e-30f)) {
        return;
    }
    FourBits found;
    float least = 3.4e38f;
    for (const float largest : {-8.0f, -7.0f, -7.5f, -8.5f, -9.0f}) {
        found.scale = to_bf16(most / largest);
        const float error = four_bit_error(x, group, from_bf16(found.scale), found.codes);
        if (error < least) {
            least = error;
            best = found;
        }
    }
}

inline void write_four_bits(const KvLayout& kv, uint8_t* plane, const float* x, int32_t slot) {
    const int32_t n = kv.head_size, group = kv.group();
    auto* scales = reinterpret_cast<uint16_t*>(plane + kv.half_bytes());
    alignas(64) int32_t codes[32] = {};
    for (int32_t first = 0; first < n; first += group) {
        FourBits rounded;
        round_to_four_bits(x + first, group, rounded);
        scales[first / group * kPageTokens + slot] = rounded.scale;
        __builtin_memcpy(codes + first % 32, rounded.codes, group * sizeof(int32_t));
        const i32x16 lower = add_i32(load_i32(codes), set1_i32(8)), upper = add_i32(load_i32(codes + 16), set1_i32(8));
        const bool is_half = (first + group) % 32 > 0;  // the rest of its bytes may follow
        const i32x16 both = is_half ? lower : or_i32(lower, shl_i32<4>(upper));
        store_fourth(plane + first / 32 * 16 * kPageTokens + slot / 4 * 64, slot % 4, both);
    }
}

template <class Element> inline void convert(const float* x, Element* out) {
    if constexpr (sizeof(Element) == 4) {
        store(out, load(x));
    } else {
        store_f16(out, load(x));
    }
}

template <class Element>
inline void write_plain(const KvLayout& kv, uint8_t* plane, const float* x, int32_t step, int32_t start) {
    auto* to = reinterpret_cast<Element*>(plane) + start;
    alignas(64) Element lane[16];
    for (int32_t d = 0; d < kv.head_size; d += 16) {
        convert(x + d, lane);
        for (int32_t i = 0; i < 16; ++i) {
            to[(d + i) * step] = lane[i];
        }
    }
}

inline void set_scale(const KvLayout& kv, uint8_t* plane, int32_t slot, float scale) {
    uint32_t bits;
    __builtin_memcpy(&bits, &scale, 4);
    const_cast<uint16_t*>(scales_of(kv, plane))[slot] = uint16_t(bits >> 16);
}

// A key's bytes lie by fours, a value's alone.
inline void write_q16(const KvLayout& kv, uint8_t* plane, const float* x, int32_t slot, bool is_key) {
    const float most = code_scale<KvType::q16>(x, kv.head_size), scale = is_key ? rounded_up(most) : power_above(most);
    const f32x16 steps = steps_per_unit(scale);
    for (int32_t d = 0; d < kv.head_size; d += 16) {
        const i32x16 code = to_i32(mul(load(x + d), steps));
        const i32x16 high = shr_i32<8>(add_i32(code, set1_i32(128 * 256 + 128))), low = add_i32(code, set1_i32(128));
        uint8_t* at = plane + d * 2 * kPageTokens;
        if (!is_key) {
            store_fourth(at + slot / 4 * 128, slot % 4, high);
            store_fourth(at + slot / 4 * 128 + 64, slot % 4, low);
            continue;
        }
        alignas(16) int8_t bytes[2][16];
        store_i8(bytes[0], high);
        store_i8(bytes[1], low);
        for (int i = 0; i < 8; ++i) {
            __builtin_memcpy(at + i * 128 + slot * 4, bytes[i % 2] + i / 2 * 4, 4);
        }
    }
    set_scale(kv, plane, slot, scale);
}

// Likewise, in pairs of whole codes.
inline void write_i16(const KvLayout& kv, uint8_t* plane, const float* x, int32_t slot, bool is_key) {
    const int32_t n = kv.head_size;
    const float scale = is_key ? rounded_up(code_scale<KvType::i16>(x, n)) : power_above(largest_of(x, n) / kMostValue);
    const f32x16 steps = steps_per_unit(scale);
    alignas(32) int16_t codes[16];
    for (int32_t d = 0; d < n; d += 16) {
        store_i16(codes, to_i32(mul(load(x + d), steps)));
        uint8_t* at = plane + d * 2 * kPageTokens;
        for (int i = 0; i < 8 && is_key; ++i) {
            __builtin_memcpy(at + i * 128 + slot * 4, codes + 2 * i, 4);
        }
        for (int i = 0; i < 16 && !is_key; ++i) {
            __builtin_memcpy(at + slot / 2 * 64 + i * 4 + slot % 2 * 2, codes + i, 2);
        }
    }
    set_scale(kv, plane, slot, scale);
}

inline void write_plane(const KvLayout& kv, uint8_t* plane, const float* x, int32_t slot, int32_t step, int32_t start) {
    switch (kv.type) {
        case KvType::f32: return write_plain<float>(kv, plane, x, step, start);
        case KvType::f16: return write_plain<uint16_t>(kv, plane, x, step, start);
        case KvType::q8: return write_q8(kv, plane, x, slot, step == kPageTokens);
        case KvType::q4: return step == 1 ? write_four_bits(kv, plane, x, slot) : write_q8(kv, plane, x, slot, true);
        case KvType::q16: return write_q16(kv, plane, x, slot, step == kPageTokens);
        case KvType::i16: return write_i16(kv, plane, x, slot, step == kPageTokens);
    }
}

inline void write(const KvLayout& kv, uint8_t* head, int32_t slot, const float* key, const float* value) {
    write_plane(kv, head, key, slot, kPageTokens, slot);
    write_plane(kv, head + kv.key_bytes(), value, slot, 1, slot * kv.head_size);
}

inline void fetch(const KvLayout& kv, const AttentionAhead& pages) {
    for (int32_t i = 0; i < pages.count; ++i) {
        const Fetch keys(kv, pages.memory + pages.pages[i] * kv.page_bytes, true);
        switch (kv.type) {
            case KvType::f32: keys.steps<KvType::f32>(0, kv.head_size); break;
            case KvType::q16:
            case KvType::i16: keys.steps<KvType::q16>(0, kv.head_size); break;
            default: keys.steps<KvType::f16>(0, kv.head_size);
        }
    }
}

}  // namespace stoker::STOKER_ISA
