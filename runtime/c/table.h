/* Tables by words: the answers of calls, maps of tensors, descriptors that were found legal. Part of engine.c.
 *
 * The interpreter's lock protects all tables.
 */

#define BUCKETS 256
#define MOST_KNOWN 4096 /* of a table; then all are forgotten */

typedef struct Known {
    struct Known *next; /* of the same bucket */
    uint64_t hash;
    PyObject *answer;
    const void *part; /* of the answer, for a quick way */
    size_t count;
    uint64_t words[];
} Known;

typedef struct {
    Known *bucket[BUCKETS];
    size_t used;
} Table;

static uint64_t hash_words(const uint64_t *words, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++) /* the products do not wait for each other */
        hash = (hash << 7 | hash >> 57) ^ words[i] * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static inline Known *find(const Table *in, const uint64_t *words, size_t count)
{
    uint64_t hash = hash_words(words, count);
    Known *known = in->bucket[hash % BUCKETS];
    while (known != NULL && (known->hash != hash || known->count != count ||
                             memcmp(known->words, words, count * sizeof *words) != 0))
        known = known->next;
    return known;
}

static void forget(Table *in)
{
    in->used = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        for (Known *known; (known = in->bucket[i]) != NULL;) {
            in->bucket[i] = known->next;
            Py_XDECREF(known->answer);
            PyMem_Free(known);
        }
}

/* Keep an answer, a reference that is given up, instead of an earlier one; -1 with an exception. */
static int keep(Table *in, const uint64_t *words, size_t count, PyObject *answer, const void *part)
{
    OWNED PyObject *other = answer;
    if (answer == NULL)
        return -1;
    if (in->used == MOST_KNOWN)
        forget(in);
    Known *known = find(in, words, count);
    if (known == NULL) {
        uint64_t hash = hash_words(words, count);
        Known **first = &in->bucket[hash % BUCKETS];
        if ((known = PyMem_Malloc(sizeof *known + count * sizeof *words)) == NULL)
            return (void)PyErr_NoMemory(), -1;
        *known = (Known){*first, hash, NULL, NULL, count};
        memcpy(known->words, words, count * sizeof *words);
        *first = known;
        in->used++;
    }
    other = known->answer;
    known->answer = answer;
    known->part = part;
    return 0;
}
