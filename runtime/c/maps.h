/* Tensor maps of the descriptors that a launch takes. Part of engine.c. */

static Table maps; /* of descriptors: they come again and again with the same tensor, from fresh objects too */
#define WORDS(key) (const uint64_t *)(key), sizeof(Key) / sizeof(uint64_t)

/* Encode a map, and keep it if it is `usual`; im2col, no such driver, or a refusal: Python encodes it, or says why not. */
static COLD int new_map(const Launch *self, int number, PyObject *descriptor, const Key *key, int usual,
                                         unsigned char *map)
{
    const MapKind *kind = &self->maps[number];
    int encoded = kind->tiled && self->encode_tiled != NULL &&
                  encode_map(self->encode_tiled, kind, key->address, (const uint64_t *)key->shape,
                             (const uint64_t *)key->strides, key->flags & FLAG_ROUND, key->flags & FLAG_NAN,
                             self->unmark, map) == 0;
    OWNED PyObject *bytes = encoded ? PyBytes_FromStringAndSize((char *)map, MAP_BYTES)
                                    : PyObject_CallFunction(self->encode, "iO", number, descriptor);
    if (bytes == NULL || !PyBytes_Check(bytes) || PyBytes_Size(bytes) != MAP_BYTES)
        return -1;
    memcpy(map, PyBytes_AsString(bytes), MAP_BYTES);
    return usual ? keep(&maps, WORDS(key), Py_NewRef(bytes), PyBytes_AsString(bytes)) : 0;
}

/* Put one descriptor: its map, then shape and strides. */
static __attribute__((noinline)) int put_descriptor(const Launch *self, const Leaf *leaf, Key *key, Packed *to)
{
    const MapKind *kind = &self->maps[to->map];
    int usual = kind->tiled && (int)(key->flags & 15) == kind->rank;
    key->number = kind->number;
    key->address = leaf->word;
    const Known *known = usual ? find(&maps, WORDS(key)) : NULL;
    if (known != NULL)
        memcpy(to->maps[to->map], known->part, MAP_BYTES);
    else if (new_map(self, to->map, leaf->value, key, usual, to->maps[to->map]) < 0)
        return -1;
    put_described(to, (const uint64_t *)key->shape, (const uint64_t *)key->strides, kind->rank);
    return 0;
}
