/* Devices, and launches on them: part of gluon_bundle.c, which includes it. */

/* CUlaunchAttribute and hipLaunchAttribute. */
typedef struct {
    unsigned id, pad;
    unsigned value[16];
} Attribute;

typedef struct Loaded {
    const gb_form *form;
    void *function;
    struct Loaded *next;
} Loaded;

struct gb_device {
    int hip, index;
    void *library, *context;
    char architecture[64];
    Loaded *loaded;
};

typedef int (*Call)();

static Call call_of(const gb_device *self, const char *name)
{
    void *found = dlsym(self->library, name);
    Call call;
    memcpy(&call, &found, sizeof call);
    return call;
}

static int missing_call(void) { return 999; }

static Call need(const gb_device *self, const char *name)
{
    Call call = call_of(self, name);
    return call == NULL ? (Call)missing_call : call;
}

static gb_status open_cuda(gb_device *self, gb_error *error)
{
    int device = 0, major = 0, minor = 0;
    self->library = dlopen("libcuda.so.1", RTLD_NOW);
    if (self->library == NULL)
        return fail(error, GB_DEVICE, "libcuda.so.1 is not installed");
    if (need(self, "cuInit")(0) || need(self, "cuDeviceGet")(&device, self->index) ||
        need(self, "cuDeviceGetAttribute")(&major, 75, device) ||
        need(self, "cuDeviceGetAttribute")(&minor, 76, device) ||
        need(self, "cuDevicePrimaryCtxRetain")(&self->context, device))
        return fail(error, GB_DEVICE, "libcuda.so.1 sees no device %d", self->index);
    snprintf(self->architecture, sizeof self->architecture, "sm_%d%d", major, minor);
    return GB_OK;
}

static gb_status open_hip(gb_device *self, gb_error *error)
{
    static const char *names[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"};
    static char room[4096]; /* more than hipDeviceProp_t of any release has */
    size_t i;
    Call ask;
    for (i = 0; i < 3 && self->library == NULL; i++)
        self->library = dlopen(names[i], RTLD_NOW);
    if (self->library == NULL)
        return fail(error, GB_DEVICE, "libamdhip64.so is not installed");
    self->hip = 1;
    ask = call_of(self, "hipGetDevicePropertiesR0600");
    if (ask == NULL)
        ask = need(self, "hipGetDeviceProperties");
    if (need(self, "hipSetDevice")(self->index) || ask(room, self->index))
        return fail(error, GB_DEVICE, "libamdhip64.so sees no device %d", self->index);
    for (i = 256; i + sizeof self->architecture < sizeof room; i++) /* behind the device's own name */
        if (memcmp(room + i, "gfx", 3) == 0) {
            size_t length = strcspn(room + i, ":");
            if (length >= sizeof self->architecture)
                length = sizeof self->architecture - 1;
            memcpy(self->architecture, room + i, length);
            return GB_OK;
        }
    return fail(error, GB_DEVICE, "libamdhip64.so does not say what device %d is", self->index);
}

gb_device *gb_device_open(const gb_bundle *bundle, int index, gb_error *error)
{
    int wants[2] = {0, 0};
    size_t k, f;
    gb_device *self = calloc(1, sizeof *self);
    gb_status status = GB_DEVICE;
    if (self == NULL) {
        fail(error, GB_MEMORY, "out of memory");
        return NULL;
    }
    self->index = index;
    for (k = 0; k < bundle->kernel_count; k++)
        for (f = 0; f < bundle->kernels[k].count; f++) {
            gb_form_info info;
            gb_form_get(&bundle->kernels[k].forms[f], &info);
            wants[0] |= strcmp(info.driver, "cuda") == 0;
            wants[1] |= strcmp(info.driver, "hip") == 0;
        }
    fail(error, GB_DEVICE, "the bundle has no code for a driver that is known");
    if (wants[0])
        status = open_cuda(self, error);
    if (status && wants[1]) {
        self->library = NULL;
        status = open_hip(self, error);
    }
    if (status) {
        free(self);
        return NULL;
    }
    if (error != NULL)
        *error = (gb_error){GB_OK, ""};
    return self;
}

void gb_device_close(gb_device *self)
{
    while (self != NULL && self->loaded != NULL) {
        Loaded *next = self->loaded->next;
        free(self->loaded);
        self->loaded = next;
    }
    free(self);
}

const char *gb_device_architecture(const gb_device *self) { return self->architecture; }

static gb_status enter(gb_device *self, gb_error *error)
{
    void *current = NULL;
    int status;
    if (self->hip)
        status = need(self, "hipSetDevice")(self->index);
    else {
        status = need(self, "cuCtxGetCurrent")(&current);
        if (!status && current != self->context)
            status = need(self, "cuCtxSetCurrent")(self->context);
    }
    return status ? fail(error, GB_DRIVER, "the device cannot be used: error %d of the driver", status)
                  : GB_OK;
}

static gb_status set_up(gb_device *self, void *function, const gb_form_info *info, gb_error *error)
{
    int device = 0, most = 0, own = 0, threads = 0;
    int status = need(self, "cuDeviceGet")(&device, self->index);
    if (!status)
        status = need(self, "cuDeviceGetAttribute")(&most, 97, device);
    if (!status)
        status = need(self, "cuFuncGetAttribute")(&threads, 0, function);
    if (!status && (info->shared > (unsigned)most ||
                    info->num_warps * info->warp_size > (unsigned)threads))
        return fail(error, GB_DEVICE, "%s needs %u bytes of shared memory and %u threads; the device has "
                                      "%d and %d", info->entry, info->shared,
                    info->num_warps * info->warp_size, most, threads);
    if (!status && info->shared > 48 * 1024) {
        status = need(self, "cuFuncSetCacheConfig")(function, 1);
        if (!status)
            status = need(self, "cuFuncGetAttribute")(&own, 1, function);
        if (!status)
            status = need(self, "cuFuncSetAttribute")(function, 8, most - own);
    }
    if (!status && info->num_ctas > 8)
        status = need(self, "cuFuncSetAttribute")(function, 14, 1);
    return status ? fail(error, GB_DRIVER, "%s cannot be set up: error %d of the driver", info->entry,
                         status)
                  : GB_OK;
}

static gb_status load(gb_device *self, gb_form *form, void **function, gb_error *error)
{
    Loaded *found;
    gb_form_info info;
    void *module = NULL;
    int status;
    for (found = self->loaded; found != NULL; found = found->next)
        if (found->form == form) {
            *function = found->function;
            return GB_OK;
        }
    gb_form_get(form, &info);
    if (!form->checked) {
        char digest[DIGITS + 1];
        digest_of(form->code, form->code_size, digest);
        if (strcmp(digest, text_at(form->kernel->bundle, word(form->row + 20))) != 0)
            return fail(error, GB_HASH, "the code of %s was exchanged: its sha256 is %s", info.entry,
                        digest);
        form->checked = 1;
    }
    status = need(self, self->hip ? "hipModuleLoadData" : "cuModuleLoadData")(&module, info.code);
    if (!status)
        status = need(self, self->hip ? "hipModuleGetFunction" : "cuModuleGetFunction")(
            function, module, info.entry);
    if (status)
        return fail(error, GB_DRIVER, "%s cannot be loaded: error %d of the driver", info.entry, status);
    if (!self->hip && set_up(self, *function, &info, error))
        return error == NULL ? GB_DRIVER : error->status;
    found = malloc(sizeof *found);
    if (found == NULL)
        return fail(error, GB_MEMORY, "out of memory");
    *found = (Loaded){form, *function, self->loaded};
    self->loaded = found;
    return GB_OK;
}

static int launch_now(gb_device *self, void *function, const gb_form_info *info, const uint32_t *grid,
                      void *stream, void **pointers)
{
    Attribute attributes[4];
    Config config;
    unsigned threads = info->num_warps * info->warp_size;
    if (self->hip && info->num_ctas == 1)
        return need(self, info->cooperative ? "hipModuleLaunchCooperativeKernel"
                                            : "hipModuleLaunchKernel")(
            function, grid[0], grid[1], grid[2], threads, 1u, 1u, info->shared, stream, pointers,
            (void *)NULL);
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    config.grid[0] = grid[0] * info->num_ctas;
    config.grid[1] = grid[1];
    config.grid[2] = grid[2];
    config.block[0] = threads;
    config.block[1] = config.block[2] = 1;
    config.shared = info->shared;
    config.stream = stream;
    config.attributes = attributes;
    if (info->dependent && !self->hip) {
        attributes[config.number].id = 6;
        attributes[config.number++].value[0] = 1;
    }
    if (info->cooperative) {
        attributes[config.number].id = 2;
        attributes[config.number++].value[0] = 1;
    }
    if (info->num_ctas != 1) {
        attributes[config.number].id = 4;
        attributes[config.number].value[0] = info->num_ctas;
        attributes[config.number].value[1] = attributes[config.number].value[2] = 1;
        config.number++;
        if (!self->hip) {
            attributes[config.number].id = 5;
            attributes[config.number++].value[0] = 1;
        }
    }
    return need(self, self->hip ? "hipDrvLaunchKernelEx" : "cuLaunchKernelEx")(
        &config, function, pointers, (void *)NULL);
}

/* Memory for one launch; its address goes into the buffer. `*owned` is what is to be given back. */
static int scratch(gb_device *self, const uint32_t need_[2], uint64_t blocks, void *stream,
                   unsigned char *at, uint64_t *owned)
{
    uint64_t size = need_[0] * blocks, address = 0, align = need_[1] ? need_[1] : 1;
    int status;
    *owned = 0;
    if (!need_[0])
        return 0;
    status = need(self, self->hip ? "hipMallocAsync" : "cuMemAllocAsync")(
        &address, (size_t)(size + (align > 256 ? align : 0)), stream);
    *owned = status ? 0 : address;
    address = (address + align - 1) / align * align;
    memcpy(at, &address, 8);
    return status;
}

/* The map of a descriptor; `into` is aligned to 64. */
static int encode(gb_device *self, const unsigned char *map, const gb_descriptor *given, unsigned char *into)
{
    MapKind kind = {.rank = (int)given->rank, .swizzle = (int)word(map), .type = (int)word(map + 4),
                    .bytes = (int)word(map + 8), .fp4_padded = (int)word(map + 12)};
    int i, version = 0, unmark = !need(self, "cuDriverGetVersion")(&version) && version <= 13010;
    /* PTX numbers element types as the driver does but for three. */
    kind.type = kind.type == 8 ? 10 : kind.type == 9 ? 8 : kind.type == 10 ? 9 : kind.type;
    for (i = 0; i < kind.rank; i++)
        kind.box[i] = word(map + 20 + 4 * (kind.rank - 1 - i));
    return encode_map((EncodeTiled)need(self, "cuTensorMapEncodeTiled"), &kind,
                      (uint64_t)(uintptr_t)given->address, given->shape, given->strides, given->tf32,
                      given->nan, unmark, into);
}

gb_status gb_launch_form(gb_device *self, const gb_form *form, const uint32_t *grid, void *stream,
                         const gb_value *values, size_t count, gb_error *error)
{
    gb_form_info info;
    uint64_t owned[2], blocks;
    uint32_t i, used = 0, places = argument_count(form);
    void *function = NULL, **pointers = NULL;
    unsigned char *room = NULL, *buffer = NULL;
    gb_status status;
    int code = 0;
    gb_form_get(form, &info);
    if (grid == NULL && !info.has_grid)
        return fail(error, GB_ARGUMENT, "the bundle does not say over which grid %s runs", info.entry);
    if (strcmp(info.driver, self->hip ? "hip" : "cuda") != 0 ||
        strcmp(info.architecture, self->architecture) != 0)
        return fail(error, GB_TARGET, "%s: the form is for %s, the device is %s", info.entry, info.target,
                    self->architecture);
    grid = grid == NULL ? info.grid : grid;
    if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT32_MAX)
        return fail(error, GB_ARGUMENT, "not a grid: %u x %u x %u", grid[0], grid[1], grid[2]);
    room = calloc(1, info.buffer_size + 72);
    pointers = calloc((size_t)places * 11 + 2, sizeof *pointers);
    if (room != NULL) /* maps are aligned to 64 */
        buffer = room + (64 - (uintptr_t)room % 64) % 64;
    if (buffer == NULL || pointers == NULL)
        status = fail(error, GB_MEMORY, "out of memory");
    else
        status = gb_pack(form, values, count, buffer, error);
    if (!status && grid[0] && grid[1] && grid[2])
        status = enter(self, error);
    else
        goto done;
    if (!status) /* a form of a bundle is ours to mark as checked */
        status = load(self, &((gb_kernel *)form->kernel)->forms[form - form->kernel->forms], &function,
                      error);
    if (status)
        goto done;
    for (i = 0; i < places; i++) {
        Argument argument = argument_at(form, i);
        unsigned char *at = buffer + argument.offset;
        uint32_t d, rank = argument.flags;
        if (argument.is_value)
            pointers[used++] = at;
        if (argument.is_value != DESCRIPTOR)
            continue;
        code = encode(self, form->kernel->bundle->index + argument.code,
                      (const gb_descriptor *)(uintptr_t)values[i].bits, at);
        if (code) {
            status = fail(error, GB_DRIVER, "%s: the driver cannot encode the descriptor: error %d",
                          gb_parameter_name(form->kernel, argument.parameter), code);
            goto done;
        }
        for (d = 0; d < 2 * rank; d++)
            pointers[used++] = at + (d < rank ? shape_place(d) : stride_place(rank, d - rank));
    }
    pointers[used++] = buffer + word(form->row + 88);
    pointers[used] = buffer + word(form->row + 92);
    blocks = (uint64_t)grid[0] * grid[1] * grid[2] * info.num_ctas;
    code = scratch(self, info.global_scratch, blocks, stream, pointers[used - 1], &owned[0]);
    if (!code)
        code = scratch(self, info.profile_scratch, blocks, stream, pointers[used], &owned[1]);
    else
        owned[1] = 0;
    if (!code)
        code = launch_now(self, function, &info, grid, stream, pointers);
    for (i = 0; i < 2; i++) /* the stream keeps later users behind the kernel */
        if (owned[i])
            need(self, self->hip ? "hipFreeAsync" : "cuMemFreeAsync")(owned[i], stream);
    if (code)
        status = fail(error, GB_DRIVER, "the driver refused the launch of %s over %u x %u x %u: error %d",
                      info.entry, grid[0], grid[1], grid[2], code);
done:
    free(pointers);
    free(room);
    return status;
}

gb_status gb_launch(gb_device *self, const gb_kernel *kernel, const uint32_t *grid, void *stream,
                    const gb_value *values, size_t count, gb_error *error)
{
    gb_error own;
    const gb_form *form;
    error = error == NULL ? &own : error;
    *error = (gb_error){GB_OK, ""};
    if (kernel == NULL)
        return fail(error, GB_KERNEL, "no kernel");
    form = gb_select(kernel, self->hip ? "hip" : "cuda", self->architecture, values, count, error);
    if (form == NULL)
        return error->status;
    return gb_launch_form(self, form, grid, stream, values, count, error);
}
