/* The score of an argument for compiled code: part of engine.c and of gluon_bundle.c. */

#define RECORD __attribute__((packed, may_alias))
/* The conditions of an argument; gluon_runtime.conditions makes them. Tuples are taken apart. */
typedef struct RECORD {
    uint32_t parameter, kind;
    uint32_t text; /* the type, the element type of a pointer, or the constant */
    uint32_t code; /* a letter */
    uint32_t offset, divisor, words;
    int8_t scores[8]; /* by gb_kind */
    int64_t least;
    uint64_t most;
    int64_t narrow_least;
    uint64_t narrow_most, small;
    MapKind map; /* of a descriptor */
} ArgumentRow;
enum { ROW_CONSTANT, ROW_VALUE, ROW_DESCRIPTOR }; /* its kinds */
enum { NEVER = -128, WIDER = -2, UNFIT = -1000 };  /* scores */

static int within(const gb_value *value, int64_t least, uint64_t most)
{
    if (value->kind == GB_INTEGER && (int64_t)value->bits < 0)
        return (int64_t)value->bits >= least && (most > INT64_MAX || (int64_t)value->bits <= (int64_t)most);
    return value->bits <= most && (least < 0 || value->bits >= (uint64_t)least);
}

/* Return the score of a value whose constant or descriptor fits, or UNFIT. `expected` is the text of the row. */
static int score_value(const ArgumentRow *row, const char *expected, const gb_value *value)
{
    int points = value->kind <= GB_DESCRIPTOR ? row->scores[value->kind] : NEVER;
    int is_pointer = value->kind == GB_POINTER;
    const char *element = is_pointer && value->text != NULL ? value->text : expected;
    element = strcmp(element, "i1") == 0 ? "u1" : element;
    if (points == NEVER)
        return UNFIT;
    if (row->kind != ROW_VALUE || (!is_pointer && value->kind != GB_INTEGER && value->kind != GB_UNSIGNED))
        return points;
    if ((is_pointer && strcmp(element, expected) != 0) || value->size > row->small ||
        !within(value, row->least, row->most) || value->bits % row->divisor)
        return UNFIT;
    return points + (within(value, row->narrow_least, row->narrow_most) ? WIDER : 0);
}
