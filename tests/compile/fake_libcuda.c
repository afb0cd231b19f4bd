/* A CUDA driver without a device, for Triton's own launchers: it loads nothing, encodes a tensor map as the arguments
   of the encoding, and writes each launch down: its configuration, and the bytes of its kernel's parameters. */
#include "cuda.h"
#include <string.h>

#define NOTED (1 << 16)
static unsigned char noted[NOTED];
static size_t noted_bytes, sizes[256], params;

static void note(const void *from, size_t bytes) {
  if (noted_bytes + bytes <= NOTED) {
    memcpy(noted + noted_bytes, from, bytes);
    noted_bytes += bytes;
  }
}

/* sizes of the parameters of the launches to come; the driver would know them from the binary */
void fake_expect(const size_t *bytes, size_t count) {
  memcpy(sizes, bytes, count * sizeof *bytes);
  params = count;
}

/* what was noted since the last call */
size_t fake_taken(unsigned char *to) {
  size_t bytes = noted_bytes;
  memcpy(to, noted, bytes);
  noted_bytes = 0;
  return bytes;
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {
  unsigned numbers[] = {config->gridDimX,  config->gridDimY,  config->gridDimZ,      config->blockDimX,
                        config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->numAttrs};
  note(numbers, sizeof numbers);
  note(&config->hStream, sizeof config->hStream);
  note(&f, sizeof f);
  for (size_t i = 0; i < params; ++i)
    note(kernelParams[i], sizes[i]);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                        const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                        const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                        CUtensorMapFloatOOBfill fill) {
  cuuint64_t *out = (cuuint64_t *)map;
  memset(map, 0, sizeof *map);
  out[0] = (cuuint64_t)address;
  out[2] = (cuuint64_t)type << 32 | rank;
  out[3] = (cuuint64_t)swizzle << 32 | (cuuint64_t)fill << 16 | (cuuint64_t)interleave << 8 | l2;
  for (cuuint32_t i = 0; i < rank && i < 3; ++i) {
    out[4 + i] = dims[i];
    out[7 + i] = i + 1 < rank ? strides[i] : 0;
    out[10 + i] = (cuuint64_t)steps[i] << 32 | box[i];
  }
  return CUDA_SUCCESS;
}

static int thing;
CUresult CUDAAPI cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetCurrent(CUcontext *c) { return *c = (CUcontext)&thing, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetCurrent(CUcontext c) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetDevice(CUdevice *d) { return *d = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetLimit(size_t *v, CUlimit l) { return *v = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetLimit(CUlimit l, size_t v) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceGet(CUdevice *d, int i) { return *d = i, CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceGetCount(int *n) { return *n = 1, CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) { return *v = 227 * 1024, CUDA_SUCCESS; }
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { return cuCtxGetCurrent(c); }
CUresult CUDAAPI cuDriverGetVersion(int *v) { return *v = 13020, CUDA_SUCCESS; }
CUresult CUDAAPI cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) { return *v = 1024, CUDA_SUCCESS; }
CUresult CUDAAPI cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuGetErrorString(CUresult e, const char **s) { return *s = "fake", CUDA_SUCCESS; }
CUresult CUDAAPI cuModuleLoadData(CUmodule *m, const void *image) { return *m = (CUmodule)&thing, CUDA_SUCCESS; }
CUresult CUDAAPI cuModuleUnload(CUmodule m) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuModuleGetFunction(CUfunction *f, CUmodule m, const char *n) { return *f = (CUfunction)&thing, CUDA_SUCCESS; }
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) { return *n = 1, CUDA_SUCCESS; }
CUresult CUDAAPI cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) { return *(CUdeviceptr *)v = p, CUDA_SUCCESS; }
CUresult CUDAAPI cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *v) { return *v = 0, CUDA_SUCCESS; }
