/* NVML by dlopen(); see gpu.h. Only calls that exist since driver 450 are used. */
#include "agent/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/base/clock.h"

/* As NVML's interface declares them. */
struct nvml_utilization {
	unsigned gpu, memory; /* per cent */
};

struct nvml_memory {
	unsigned long long total, free, used;
};

/* X(member, symbol, parameters) */
#define NVML_CALLS(X)                                                                        \
	X(init, "nvmlInit_v2", (void))                                                       \
	X(shutdown, "nvmlShutdown", (void))                                                  \
	X(device, "nvmlDeviceGetHandleByIndex_v2", (unsigned, void **))                      \
	X(name, "nvmlDeviceGetName", (void *, char *, unsigned))                             \
	X(utilization, "nvmlDeviceGetUtilizationRates", (void *, struct nvml_utilization *)) \
	X(memory, "nvmlDeviceGetMemoryInfo", (void *, struct nvml_memory *))

struct gpu_calls {
#define NVML_MEMBER(member, symbol, parameters) int(*member) parameters;
	NVML_CALLS(NVML_MEMBER)
#undef NVML_MEMBER
};

static struct gpu_calls nvml; /* one library per process, filled in by gpu_open() */

static int find_calls(void *library, const char **ret_missing)
{
#define NVML_FIND(member, symbol, parameters)            \
	*(void **)&nvml.member = dlsym(library, symbol); \
	if (!nvml.member) {                              \
		*ret_missing = symbol;                   \
		return -ENODEV;                          \
	}
	NVML_CALLS(NVML_FIND)
#undef NVML_FIND
	return 0;
}

static int open_device(struct gpu *gpu, unsigned index, char *why)
{
	char product[48] = "";
	int err = nvml.init();

	if (err) {
		snprintf(why, GPU_WHY_MAX, "NVML does not start (error %d)", err);
		return -ENODEV;
	}
	err = nvml.device(index, &gpu->device);
	if (err || !gpu->device) {
		snprintf(why, GPU_WHY_MAX, "NVML knows no GPU %u (error %d)", index, err);
		nvml.shutdown();
		gpu->device = NULL;
		return -ENODEV;
	}
	if (nvml.name(gpu->device, product, sizeof(product) - 1) == 0)
		snprintf(gpu->name, sizeof(gpu->name), "%u %s", index, product);
	gpu->calls = &nvml;
	return 0;
}

int gpu_open(struct gpu *gpu, unsigned index, char why[GPU_WHY_MAX])
{
	const char *missing = NULL;

	*gpu = (struct gpu){ .utilization = -1 };
	snprintf(gpu->name, sizeof(gpu->name), "%u", index);
	gpu->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!gpu->library) {
		snprintf(why, GPU_WHY_MAX, "libnvidia-ml.so.1 is not there (no NVIDIA driver)");
		return -ENODEV;
	}
	if (find_calls(gpu->library, &missing) < 0)
		snprintf(why, GPU_WHY_MAX, "libnvidia-ml.so.1 has no %s", missing);
	else if (open_device(gpu, index, why) == 0)
		return 0;
	dlclose(gpu->library);
	gpu->library = NULL;
	return -ENODEV;
}

void gpu_close(struct gpu *gpu)
{
	if (gpu->calls)
		gpu->calls->shutdown();
	if (gpu->library)
		dlclose(gpu->library);
	*gpu = (struct gpu){ .utilization = -1 };
}

static void read_driver(struct gpu *gpu)
{
	struct nvml_utilization rates;
	struct nvml_memory memory;

	gpu->utilization = -1;
	if (gpu->calls->utilization(gpu->device, &rates) == 0 && rates.gpu <= 100)
		gpu->utilization = rates.gpu / 100.0;
	gpu->has_memory = gpu->calls->memory(gpu->device, &memory) == 0;
	gpu->memory_used = gpu->has_memory ? memory.used : 0;
}

void gpu_sample(struct gpu *gpu, uint64_t now_ns, struct engine_state *state)
{
	if (!gpu->device)
		return;
	if (gpu->read_ns == 0 || now_ns - gpu->read_ns >= NS_PER_S) {
		read_driver(gpu);
		gpu->read_ns = now_ns;
	}
	if (gpu->utilization >= 0)
		ENGINE_SET(state, gpu_utilization, gpu->utilization);
	if (gpu->has_memory)
		ENGINE_SET(state, gpu_memory_used, gpu->memory_used);
}
