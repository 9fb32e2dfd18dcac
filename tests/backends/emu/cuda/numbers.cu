// Integers, bits, small floats and vectors.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include "common.cuh"

// launch: grid=2 block=64
KERNEL wide_integers(ARGS) {
    int i = thread();
    u64 a = (u64)u[i] << 32 | u[i + 1], b = (u64)u[i + 2] << (u[i] & 31) | 1;
    long long s = (long long)a, t = (long long)b - (1ll << 40) | 1;
    u32* o = out + 24 * i;
    put64(o, 0, a * b), put64(o, 1, a / b), put64(o, 2, a % b), put64(o, 3, s / t), put64(o, 4, s % t);
    put64(o, 5, __umul64hi(a, b)), put64(o, 6, __mul64hi(s, t)), put64(o, 7, a >> (u[i + 3] & 63));
    put64(o, 8, s >> (u[i + 3] & 63)), put64(o, 9, a << (u[i + 4] & 63));
    o[20] = __clzll(a), o[21] = __ffsll(b), o[22] = __popcll(a ^ b), o[23] = (u32)(__brevll(a) >> 13);
}

// launch: grid=2 block=64
KERNEL int128(ARGS) {
    int i = thread();
    unsigned __int128 a = ((unsigned __int128)u[i] << 90) | ((u64)u[i + 1] << 20), b = ((unsigned __int128)u[i + 2] << 33) + 12345;
    unsigned __int128 p = a * b + (a >> 7), q = a / b, r = a % b;
    u32* o = out + 12 * i;
    put64(o, 0, (u64)p), put64(o, 1, (u64)(p >> 64)), put64(o, 2, (u64)q), put64(o, 3, (u64)(q >> 64)), put64(o, 4, (u64)r), put64(o, 5, (u64)(r >> 64));
}

// launch: grid=2 block=64
KERNEL bit_tricks(ARGS) {
    int i = thread();
    u32 a = u[i], b = u[i + 1], c = u[i + 2], *o = out + 16 * i;
    o[0] = __clz(a >> (b & 31)), o[1] = __ffs(a << (b & 31)), o[2] = __popc(a), o[3] = __brev(a), o[4] = __byte_perm(a, b, c & 0x7777);
    o[5] = __funnelshift_l(a, b, c), o[6] = __funnelshift_r(a, b, c), o[7] = __funnelshift_lc(a, b, c & 63), o[8] = __funnelshift_rc(a, b, c & 63);
    o[9] = __sad(a, b, c), o[10] = __usad(a, b, c), o[11] = __mulhi(a, b), o[12] = __umulhi(a, b);
    o[13] = __hadd(a, b), o[14] = __urhadd(a, b), o[15] = __mul24(a, b) + __umul24(a, c);
}

// launch: grid=2 block=64
KERNEL dot_products(ARGS) {
    int i = thread();
    u32 a = u[i], b = u[i + 1], c = u[i + 2], *o = out + 6 * i;
    o[0] = __dp4a((int)a, (int)b, (int)c), o[1] = __dp4a(a, b, c), o[2] = __dp2a_lo((int)a, (int)b, (int)c);
    o[3] = __dp2a_hi(a, b, c), o[4] = __dp2a_lo(a, b, c), o[5] = __dp2a_hi((int)a, (int)b, (int)c);
}

// launch: grid=2 block=64
KERNEL simd_intrinsics(ARGS) {
    int i = thread();
    u32 a = u[i], b = u[i + 1], *o = out + 14 * i;
    o[0] = __vadd4(a, b), o[1] = __vaddss2(a, b), o[2] = __vabsdiffu4(a, b), o[3] = __vsadu4(a, b), o[4] = __vmaxs2(a, b), o[5] = __vminu4(a, b);
    o[6] = __vcmpgts2(a, b), o[7] = __vseteq4(a, b & 0xff00ff | a & 0xff00ff00), o[8] = __vavgu4(a, b), o[9] = __vsubus4(a, b), o[10] = __vnegss2(a);
    o[11] = __viaddmax_s32((int)a, (int)b, 5), o[12] = __vimax3_s16x2(a, b, 0x10002), o[13] = __vibmin_u32(a, b, (bool*)(o + 13)) + 1;
}

// launch: grid=2 block=64
KERNEL video(ARGS) {
    int i = thread();
    u32 a = u[i], b = u[i + 1], c = u[i + 2], *o = out + 12 * i;
    asm("vadd.s32.u32.s32.sat.add %0, %1.b1, %2.h0, %3;" : "=r"(o[0]) : "r"(a), "r"(b), "r"(c));
    asm("vsub.u32.s32.u32 %0, %1, %2.b3;" : "=r"(o[1]) : "r"(a), "r"(b));
    asm("vabsdiff.s32.s32.s32.max %0, %1.h1, %2.h0, %3;" : "=r"(o[2]) : "r"(a), "r"(b), "r"(c));
    asm("vmin.s32.s32.s32 %0, %1.b0, %2.b2;" : "=r"(o[3]) : "r"(a), "r"(b));
    asm("vmax.u32.u32.u32.min %0, %1, %2, %3;" : "=r"(o[4]) : "r"(a), "r"(b), "r"(c));
    asm("vshl.u32.u32.u32.wrap %0, %1, %2;" : "=r"(o[5]) : "r"(a), "r"(b));
    asm("vshr.s32.s32.u32.clamp.add %0, %1, %2, %3;" : "=r"(o[6]) : "r"(a), "r"(b), "r"(c));
    asm("vmad.s32.s32.s32.shr15 %0, %1.h0, %2.h1, %3;" : "=r"(o[7]) : "r"(a), "r"(b), "r"(c));
    asm("vset.u32.u32.lt %0, %1.b2, %2.b1;" : "=r"(o[8]) : "r"(a), "r"(b));
    asm("vadd4.s32.u32.s32.add %0, %1, %2, %3;" : "=r"(o[9]) : "r"(a), "r"(b), "r"(c));
    asm("vabsdiff4.u32.u32.u32 %0, %1, %2, %3;" : "=r"(o[10]) : "r"(a), "r"(b), "r"(c));
    asm("vadd2.s32.s32.s32.sat %0, %1, %2, %3;" : "=r"(o[11]) : "r"(a), "r"(b), "r"(c));
}

// launch: grid=2 block=64
KERNEL bit_fields(ARGS) {
    int i = thread();
    struct Packed { int a : 5; u32 b : 11; int c : 16; } p;
    p.a = u[i], p.b = u[i + 1], p.c = u[i + 2];
    u32 r, s, t, lop;
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(u[i]), "r"(u[i + 1] & 31), "r"(u[i + 2] & 31));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(s) : "r"(u[i]), "r"(u[i + 1]), "r"(u[i + 2] & 31), "r"(u[i + 3] & 31));
    asm("bfind.shiftamt.s32 %0, %1;" : "=r"(t) : "r"(u[i]));
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(lop) : "r"(u[i]), "r"(u[i + 1]), "r"(u[i + 2]));
    u32* o = out + 5 * i;
    o[0] = p.a * 3 + p.b * 5 + p.c, o[1] = r, o[2] = s, o[3] = t, o[4] = lop;
}

// launch: grid=2 block=64
KERNEL carries(ARGS) {
    int i = thread();
    u32 a = u[i], b = u[i + 1], c = u[i + 2], d = u[i + 3], e, f, g, h;
    asm("add.cc.u32 %0, %2, %3; addc.u32 %1, %4, %5;" : "=r"(e), "=r"(f) : "r"(a), "r"(b), "r"(c), "r"(d));
    asm("sub.cc.u32 %0, %2, %3; subc.u32 %1, %4, %5;" : "=r"(g), "=r"(h) : "r"(a), "r"(b), "r"(c), "r"(d));
    u32 lo = a, hi;
    asm("mad.lo.cc.u32 %0, %2, %3, %0; madc.hi.u32 %1, %2, %3, %4;" : "+r"(lo), "=r"(hi) : "r"(b), "r"(c), "r"(d));
    u32* o = out + 6 * i;
    o[0] = e, o[1] = f, o[2] = g, o[3] = h, o[4] = lo, o[5] = hi;
}

// launch: grid=2 block=64
KERNEL halves(ARGS) {
    int i = thread();
    __half a = __float2half(x[i + 64]), b = __float2half(x[i + 65]);
    __half2 p = __floats2half2_rn(x[i + 64], x[i + 66]), q = __half2half2(b), r = __hfma2(p, q, __hadd2(p, q));
    u32* o = out + 8 * i;
    o[0] = __half_as_ushort(__hadd(a, b)), o[1] = __half_as_ushort(__hdiv(a, b)), o[2] = *(u32*)&r, o[3] = bits(__half2float(__hmul(a, b)));
    o[4] = __hlt(a, b) | __heq(a, a) << 1 | __hisnan(__hsub(a, b)) << 2;
    o[5] = __half_as_ushort(hsqrt(__habs(a))) | __half_as_ushort(hrcp(b)) << 16;
    __half2 e = h2exp2(p);
    o[6] = *(u32*)&e;
    o[7] = __half2int_rz(a) + __half_as_ushort(__hmax(a, b)) + __half_as_ushort(__int2half_rn(i * 37));
}

// launch: grid=2 block=64
KERNEL bfloats(ARGS) {
    int i = thread();
    __nv_bfloat16 a = __float2bfloat16(x[i + 64]), b = __float2bfloat16_rz(x[i + 65]);
    __nv_bfloat162 p = __floats2bfloat162_rn(x[i + 64], x[i + 67]), q = __bfloat162bfloat162(b), r = __hfma2(p, q, p);
    u32* o = out + 6 * i;
    o[0] = __bfloat16_as_ushort(__hadd(a, b)), o[1] = __bfloat16_as_ushort(__hmul(a, b)), o[2] = *(u32*)&r;
    o[3] = bits(__bfloat162float(__hmax(a, b))), o[4] = __bfloat16_as_ushort(__hdiv(a, b)), o[5] = __hgt(a, b) + 2 * __hle(a, b);
}

// launch: grid=2 block=64
KERNEL eight_bit_floats(ARGS) {
    int i = thread();
    __nv_fp8_e4m3 a(x[i + 64]);
    __nv_fp8_e5m2 b(x[i + 65] * 100);
    __nv_fp8x2_e4m3 c(make_float2(x[i + 66], 1000.0f));
    __nv_fp8x4_e5m2 d(make_float4(x[i + 64], x[i + 65], x[i + 66], x[i + 67]));
    u32* o = out + 6 * i;
    o[0] = a.__x, o[1] = b.__x, o[2] = c.__x, o[3] = d.__x, o[4] = bits(float(a)), o[5] = bits(float(b));
}

// launch: grid=2 block=64
KERNEL vectors(ARGS) {
    int i = thread();
    uint4 v = ((const uint4*)u)[i];
    float2 f = ((const float2*)x)[i + 32];
    uchar4 c = ((const uchar4*)u)[i];
    short2 s = ((const short2*)u)[i + 1];
    ((uint4*)out)[i] = make_uint4(v.w, v.z + c.x, v.y ^ c.w, v.x + s.y);
    ((float2*)(out + 1024))[i] = make_float2(f.y * s.x, f.x - c.z);
    ((uchar4*)(out + 2048))[i] = make_uchar4(c.w, c.x + c.y, c.z >> 1, ~c.y);
    ((short4*)(out + 3072))[i] = make_short4(s.y, s.x, s.x + s.y, s.x * s.y);
}

// launch: grid=2 block=64
KERNEL narrow_integers(ARGS) {
    int i = thread();
    signed char a = u[i], b = u[i] >> 8;
    short c = u[i] >> 16, d = u[i + 1];
    unsigned char e = u[i + 1] >> 16;
    unsigned short f = u[i + 1] >> 8;
    u32* o = out + 8 * i;
    o[0] = (signed char)(a * b), o[1] = (short)(c + d), o[2] = (unsigned char)(e << 1), o[3] = (unsigned short)(f * f);
    o[4] = a / (b | 1), o[5] = c % (d | 1), o[6] = (e > b) + (f < c) * 2, o[7] = (short)(a ^ d) >> 3;
}
