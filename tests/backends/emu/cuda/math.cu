// Functions of the math library, and arithmetic in each rounding mode.
#include "common.cuh"

// launch: grid=4 block=64
KERNEL trigonometry(ARGS) {
    int i = thread();
    float v = x[i], s, c;
    sincosf(v * 3, &s, &c);
    u32* o = out + 10 * i;
    o[0] = bits(sinf(v)), o[1] = bits(cosf(v * 1e5f)), o[2] = bits(tanf(v)), o[3] = bits(s), o[4] = bits(c), o[5] = bits(asinf(v * 0.1f));
    o[6] = bits(acosf(v * 0.1f)), o[7] = bits(atanf(v)), o[8] = bits(atan2f(v, x[i + 1])), o[9] = bits(sinpif(v));
}

// launch: grid=4 block=64
KERNEL exponentials(ARGS) {
    int i = thread();
    float v = x[i], w = fabsf(x[i + 1]);
    u32* o = out + 14 * i;
    o[0] = bits(expf(v)), o[1] = bits(exp2f(v)), o[2] = bits(exp10f(v)), o[3] = bits(expm1f(v)), o[4] = bits(logf(w)), o[5] = bits(log2f(w));
    o[6] = bits(log10f(w)), o[7] = bits(log1pf(w)), o[8] = bits(powf(w, v)), o[9] = bits(sinhf(v)), o[10] = bits(coshf(v)), o[11] = bits(tanhf(v));
    o[12] = bits(asinhf(v)), o[13] = bits(atanhf(v * 0.1f));
}

// launch: grid=4 block=64
KERNEL special_functions(ARGS) {
    int i = thread();
    float v = x[i];
    u32* o = out + 12 * i;
    o[0] = bits(erff(v)), o[1] = bits(erfcf(v)), o[2] = bits(erfinvf(v * 0.1f)), o[3] = bits(tgammaf(v)), o[4] = bits(lgammaf(v)), o[5] = bits(cbrtf(v));
    o[6] = bits(rcbrtf(v)), o[7] = bits(hypotf(v, x[i + 1])), o[8] = bits(j0f(v)), o[9] = bits(normcdff(v)), o[10] = bits(rsqrtf(fabsf(v))), o[11] = bits(y1f(fabsf(v)));
}

// launch: grid=4 block=64
KERNEL rounding_modes(ARGS) {
    int i = thread();
    float a = x[i], b = x[i + 1], c = x[i + 2], p = fabsf(a);
    u32* o = out + 24 * i;
    o[0] = bits(__fdiv_rn(a, b)), o[1] = bits(__fdiv_rz(a, b)), o[2] = bits(__fdiv_ru(a, b)), o[3] = bits(__fdiv_rd(a, b));
    o[4] = bits(__fsqrt_rn(p)), o[5] = bits(__fsqrt_rz(p)), o[6] = bits(__fsqrt_ru(p)), o[7] = bits(__fsqrt_rd(p));
    o[8] = bits(__frcp_rn(a)), o[9] = bits(__frcp_rz(a)), o[10] = bits(__frcp_ru(a)), o[11] = bits(__frcp_rd(a));
    o[12] = bits(__fmaf_rz(a, b, c)), o[13] = bits(__fmaf_ru(a, b, c)), o[14] = bits(__fmaf_rd(a, b, c)), o[15] = bits(__fadd_ru(a, b));
    o[16] = bits(__fmul_rd(a, b)), o[17] = bits(__fadd_rz(a, b)), o[18] = __float2int_rd(a), o[19] = __float2uint_ru(p), o[20] = bits(__int2float_rz(u[i]));
    o[21] = bits(__uint2float_ru(u[i])), o[22] = (u32)__float2ll_rn(a * 1e6f), o[23] = bits(__ull2float_rd((u64)u[i] << 20 | u[i + 1]));
}

// launch: grid=4 block=64
KERNEL float_tools(ARGS) {
    int i = thread(), e, q;
    float v = x[i], w = x[i + 1], whole;
    u32* o = out + 18 * i;
    o[0] = bits(frexpf(v, &e)), o[1] = isfinite(v) ? e : 0, o[2] = bits(ldexpf(v, (int)(u[i] & 63) - 32)), o[3] = bits(modff(v, &whole)), o[4] = bits(whole);
    o[5] = bits(fmodf(v, w)), o[6] = bits(remainderf(v, w)), o[7] = bits(remquof(v, w, &q)), o[8] = bits(nextafterf(v, w)), o[9] = ilogbf(v), o[10] = bits(floorf(v));
    o[11] = bits(ceilf(v)), o[12] = bits(rintf(v)), o[13] = bits(roundf(v)), o[14] = bits(truncf(v)), o[15] = bits(copysignf(v, w)), o[16] = bits(fdimf(v, w));
    o[17] = isnan(v) | isinf(v) << 1 | signbit(v) << 2 | (v < w) << 3 | (v <= w) << 4 | (v != v || w != w) << 5 | (fminf(v, w) == v) << 6;
}

// launch: grid=2 block=64
KERNEL doubles(ARGS) {
    int i = thread();
    double v = x[i], w = x[i + 1];
    u32* o = out + 32 * i;
    put(o, 0, v / w), put(o, 1, sqrt(fabs(v))), put(o, 2, fma(v, w, 0.1)), put(o, 3, __ddiv_rz(v, w)), put(o, 4, __dsqrt_ru(fabs(v))), put(o, 5, floor(v) + rint(w));
    put(o, 6, fmod(v, w)), put(o, 7, __drcp_rd(w)), put(o, 8, rsqrt(fabs(w))), put(o, 9, v * w - 1), put(o, 10, fmax(v, w)), put(o, 11, (double)(float)(v * 1.0000001));
    put64(o, 12, __double2ll_rd(v * 1e3)), put64(o, 13, __double2ull_rn(fabs(w) * 1e3)), put(o, 14, __ll2double_rn((long long)u[i] << 25 | u[i + 1])), put(o, 15, __dadd_ru(v, 1e-20));
}

// launch: grid=2 block=64
KERNEL double_functions(ARGS) {
    int i = thread();
    double v = x[i], w = fabs((double)x[i + 1]);
    u32* o = out + 24 * i;
    put(o, 0, sin(v)), put(o, 1, cos(v)), put(o, 2, tan(v)), put(o, 3, exp(v)), put(o, 4, log(w)), put(o, 5, pow(w, v)), put(o, 6, atan2(v, w)), put(o, 7, tanh(v));
    put(o, 8, erf(v)), put(o, 9, cbrt(v)), put(o, 10, exp2(v)), put(o, 11, log10(w));
}

// launch: grid=4 block=64
KERNEL fast_intrinsics(ARGS) {
    int i = thread();
    float v = x[i + 64], w = fabsf(x[i + 65]) + 0.01f;
    u32* o = out + 9 * i;
    o[0] = bits(__sinf(v)), o[1] = bits(__cosf(v)), o[2] = bits(__expf(v)), o[3] = bits(__logf(w)), o[4] = bits(__fdividef(v, w)), o[5] = bits(__powf(w, v));
    o[6] = bits(__saturatef(v)), o[7] = bits(__frsqrt_rn(w)), o[8] = bits(__tanf(v));
}

// launch: grid=1 block=64
KERNEL monte_carlo(ARGS) {
    u32 state = u[thread()] | 1, inside = 0;
    for (int i = 0; i < 200; ++i) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        float a = (state & 0xffff) / 65536.0f, b = (state >> 16) / 65536.0f;
        inside += a * a + b * b < 1.0f;
    }
    out[thread()] = inside;
}

// launch: grid=1 block=64
KERNEL mandelbrot(ARGS) {
    float cr = (threadIdx.x % 8) * 0.4f - 2.0f, ci = (threadIdx.x / 8) * 0.3f - 1.0f, a = 0, b = 0;
    int k = 0;
    while (k < 100 && a * a + b * b < 4) { float t = a * a - b * b + cr; b = 2 * a * b + ci, a = t, ++k; }
    out[threadIdx.x] = k;
}
