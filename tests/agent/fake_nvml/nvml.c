/* A small libnvidia-ml.so.1 for tests: two GPUs, and failures by order of a control file.
 *
 * FAKE_NVML_CONTROL names a file whose words are read at each call:
 *   no_driver, no_permission   nvmlInit fails with 9 or 4
 *   hang_init                  nvmlInit hangs for 45 s
 *   hang0, hang1               calls on that GPU hang for 45 s, or until the word is taken back
 *   lost0, lost1               calls on that GPU fail with 15 (GPU_IS_LOST)
 *   bare1                      GPU 1 supports memory and nothing else
 *   noisy                      nvmlInit prints to standard output
 * FAKE_NVML_CALLS names a file that gets one byte per call of nvmlDeviceGetFieldValues.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NO_DRIVER = 9, LOST = 15, HANG_S = 45, GPUS = 2 };

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type;
    int result;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
    } value;
} field_value; /* nvmlFieldValue_t */

static int indices[GPUS] = {0, 1};

static int told(const char *word) {
    char text[256] = {0};
    const char *path = getenv("FAKE_NVML_CONTROL");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
    close(fd);
    return strstr(text, word) != NULL;
}

static int told_of(const char *word, void *device) {
    char name[32];
    snprintf(name, sizeof name, "%s%d", word, *(int *)device);
    return told(name);
}

/* What every call on a device begins with. */
static int enter(void *device, int everywhere) {
    for (int i = 0; i < 10 * HANG_S && told_of("hang", device); i++) usleep(100000);
    if (told_of("lost", device)) return LOST;
    return !everywhere && told_of("bare", device) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (told("noisy")) {
        printf("a library that prints\n");
        fflush(stdout);
    }
    if (told("hang_init")) sleep(HANG_S);
    if (told("no_driver")) return NO_DRIVER;
    return told("no_permission") ? NO_PERMISSION : SUCCESS;
}

const char *nvmlErrorString(int code) {
    return code == LOST ? "GPU is lost" : code == NO_DRIVER ? "Driver Not Loaded" : "Some Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &indices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-00000000000%d", *(int *)device);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[0] = 75, rates[1] = 20;
    return enter(device, 0);
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 80ULL << 30, memory[1] = 70ULL << 30, memory[2] = 10ULL << 30; /* total, free, used */
    return enter(device, 1);
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
    *milliwatts = 700000;
    return enter(device, 0);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = 250000;
    return enter(device, 0);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = 61;
    return enter(device, 0);
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *megahertz) {
    *megahertz = type == 1 ? 1980 : 2619; /* NVML_CLOCK_SM is 1, NVML_CLOCK_MEM is 2 */
    return enter(device, 0);
}

/* nvmlDeviceGetCurrentClocksEventReasons is missing, as before driver 535. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = 0x44;
    return enter(device, 0);
}

int nvmlDeviceGetFieldValues(void *device, int count, field_value *values) {
    const char *path = getenv("FAKE_NVML_CALLS");
    int result = enter(device, 0);
    if (path && *(int *)device == 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd >= 0) {
            if (write(fd, ".", 1) < 0) perror("write");
            close(fd);
        }
    }
    if (result != SUCCESS) return result;
    for (int i = 0; i < count; i++) {
        values[i].result = SUCCESS;
        values[i].type = 3; /* unsigned long long */
        switch (values[i].field) {
            case 83: values[i].value.ull = 123456789; break; /* energy, mJ */
            case 82: values[i].type = 1, values[i].value.ui = 72; break; /* memory temperature */
            case 3: values[i].value.ull = 7; break;
            case 4: values[i].value.ull = 1; break;
            default: values[i].result = NOT_SUPPORTED; /* 186, as on GPUs before Ampere */
        }
    }
    return SUCCESS;
}
