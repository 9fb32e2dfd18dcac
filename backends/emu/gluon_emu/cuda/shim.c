/* libcuda.so.1 as a table: `gluon_emu.cuda.shim` fills it with the functions of the emulated driver. */
#include <stddef.h>
#include <stdint.h>

#define NOT_INITIALIZED 3

typedef uint64_t Word;
typedef int (*Call)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

/* Integers and addresses travel alike in registers and on the stack, so one signature serves all. */
#define FORWARD(name)                                                                                     \
    Call gluon_##name;                                                                                    \
    int name(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k, Word l) \
    {                                                                                                     \
        return gluon_##name == NULL ? NOT_INITIALIZED : gluon_##name(a, b, c, d, e, f, g, h, i, j, k, l);  \
    }

