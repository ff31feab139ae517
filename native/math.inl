// Functions of sixteen floats, by the same sequence of operations on every instruction set.

namespace stoker::STOKER_ISA {

// e^x: x = n ln 2 + r with |r| <= ln(2)/2, then the polynomial of Cephes' expf for e^r; within 2 units in the last place.
// Below -87.3 it stays at about 1e-38, above 88.3 at about 2e38; not a number stays one. 18 operations.
inline f32x16 exp(f32x16 x) {
    x = min(set1(88.3f), max(set1(-87.3f), x));
    const i32x16 n = to_i32(mul(x, set1(1.44269504088896341f)));
    const f32x16 turns = to_f32(n);
    f32x16 r = fma(turns, set1(-0.693359375f), x);
    r = fma(turns, set1(2.12194440e-4f), r);
    f32x16 p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(mul(r, r), p, add(r, set1(1)));
    return mul(p, as_f32(shl_i32<23>(add_i32(n, set1_i32(127)))));
}

// 1 / x for 1 <= x < 2^120, within 2 units in the last place: a guess from the bits (12 % off), then Newton's steps, each of
// which squares the error. 8 operations; a division takes longer than the exponential.
inline f32x16 reciprocal(f32x16 x) {
    f32x16 r = as_f32(sub_i32(set1_i32(0x7ef311c7), as_i32(x)));
    for (int step = 0; step < 3; ++step) {
        r = fma(r, fma(sub(set1(0), x), r, set1(1)), r);
    }
    return r;
}

// x / (1 + e^-t): SiLU for t = x.
inline f32x16 gated(f32x16 x, f32x16 t) {
    return mul(x, reciprocal(add(set1(1), exp(sub(set1(0), max(set1(-80), t))))));
}

// ln(1 + e^x) = max(x, 0) + ln(1 + z), z = e^-|x|; ln(1 + z) = 2 (s + s³/3 + s⁵/5 + ...), s = z / (2 + z) <= 1/3; within 3 units in the
// last place.
inline f32x16 softplus(f32x16 x) {
    const f32x16 z = exp(sub(set1(0), abs(x))), s = div(z, add(z, set1(2))), square = mul(s, s);
    f32x16 p = set1(1.0f / 15);
    for (int odd = 13; odd > 0; odd -= 2) {
        p = fma(p, square, set1(1.0f / float(odd)));
    }
    return fma(add(s, s), p, max(x, set1(0)));
}

// Absolute error below 4e-7.
inline f32x16 tanh(f32x16 x) {
    const f32x16 half = min(set1(40), x);
    const f32x16 denominator = add(exp(add(half, half)), set1(1));
    return sub(set1(1), mul(set1(2), reciprocal(denominator)));
}

// The sum of the lanes, always as the same tree.
inline float reduce_add(f32x16 x) {
    alignas(64) float lane[16];
    store(lane, x);
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) {
            lane[i] += lane[i + width];
        }
    }
    return lane[0];
}

}  // namespace stoker::STOKER_ISA
