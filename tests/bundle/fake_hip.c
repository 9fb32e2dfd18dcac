/* A libamdhip64 that prints. */
#include <stdio.h>
#include <string.h>

int hipSetDevice(int index) { return index; }

static int properties(char *out, int index)
{
    memset(out, 0, 1000);
    strcpy(out, "gfx is in the name of the device");
    strcpy(out + 600, "gfx942:sramecc+:xnack-");
    return index;
}

int hipGetDevicePropertiesR0600(char *out, int index) { return properties(out, index); }

int hipModuleLoadData(void **out, const char *code)
{
    *out = (void *)0xd0;
    printf("load %.3s\n", code + 1);
    return 0;
}

int hipModuleGetFunction(void **out, void *module, const char *name)
{
    *out = (void *)0xf0;
    printf("function %s of %p\n", name, module);
    return 0;
}

int hipModuleLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned one,
                          unsigned two, unsigned shared, void *stream, void **parameters, void **extra)
{
    printf("launch %p grid %u,%u,%u block %u,%u,%u shared %u stream %p extra %p arguments %lx %lx %d %g\n", function, x,
           y, z, threads, one, two, shared, stream, (void *)extra, *(unsigned long *)parameters[0],
           *(unsigned long *)parameters[1], *(int *)parameters[2], *(float *)parameters[3]);
    return 0;
}
