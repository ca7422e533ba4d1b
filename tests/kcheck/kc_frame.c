/*
 * kc_frame.c - cases, guarded buffers, crash capture and comparison for kcheck.h.
 *
 * A slot is address space between two PROT_NONE pages, so placing a buffer is arithmetic. The jump
 * buffer and the flag that says a kernel is running are the only globals: a signal handler has no
 * argument.
 */
#include "kcheck.h"

#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cpu.h"
#include "base/rng.h"

enum { PAGE = 4096, POISON = 0xA5, PRINT_MAX = 8, QUIET_MAX = 20 };
#define SLOT_BYTES ((size_t)192 << 20)
/* MXCSR without the sticky exception flags. */
#define CONTROL_BITS 0xFFC0u

struct slot {
    uint8_t *base; /* first usable byte */
    uint8_t *p;    /* of this case */
    size_t n;
    enum kc_role role;
};
static struct slot slots[KC_SLOTS];
static sigjmp_buf crash_jump;
static volatile sig_atomic_t running;

static void on_crash(int sig)
{
    if (!running) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    siglongjmp(crash_jump, sig);
}

static void frame_init(void)
{
    if (slots[0].base)
        return;
    for (int i = 0; i < KC_SLOTS; i++) {
        uint8_t *p = mmap(NULL, SLOT_BYTES + 2 * PAGE, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || mprotect(p + PAGE, SLOT_BYTES, PROT_READ | PROT_WRITE) != 0) {
            perror("kcheck: reserving address space");
            exit(2);
        }
        slots[i].base = p + PAGE;
    }
    struct sigaction sa = {.sa_handler = on_crash, .sa_flags = SA_NODEFER};
    sigemptyset(&sa.sa_mask);
    static const int sigs[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
        sigaction(sigs[i], &sa, NULL);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static struct kc_fn *fn_of(struct kc *c, const char *name)
{
    for (int i = 0; i < c->n_fn; i++)
        if (strcmp(c->fn[i].name, name) == 0)
            return &c->fn[i];
    if (c->n_fn == KC_FN_MAX) {
        fprintf(stderr, "kcheck: more than %d kernels\n", KC_FN_MAX);
        exit(2);
    }
    c->fn[c->n_fn] = (struct kc_fn){.name = name};
    return &c->fn[c->n_fn++];
}

bool kc_case(struct kc *c, const char *fn, uint32_t i)
{
    if (c->glob && fnmatch(c->glob, fn, 0) != 0)
        return false;
    if (c->quiet && c->fails >= QUIET_MAX)
        return false;
    c->at = fn_of(c, fn);
    if (c->list)
        return false;
    frame_init();
    for (int s = 0; s < c->n_slot; s++)
        if (slots[s].n > (4u << 20)) /* give large cases' memory back */
            madvise(slots[s].base, SLOT_BYTES, MADV_DONTNEED);
    c->n_slot = 0;
    c->at->cases++;
    c->failed = false;
    uint64_t h = c->seed;
    for (const char *s = fn; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001B3u;
    c->state = rng_u64(h, 1, i);
    c->at_begin = i & 1;
    snprintf(c->shape, sizeof c->shape, "case %u", i);
    return true;
}

void kc_shape(struct kc *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->shape, sizeof c->shape, fmt, ap);
    va_end(ap);
}

void kc_fail(struct kc *c, const char *fmt, ...)
{
    if (c->failed)
        return;
    c->failed = true;
    c->fails++;
    if (c->at->fails++ >= PRINT_MAX || c->quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL %s %s %s: ", cpu_isa_name(c->k->isa), c->at->name, c->shape);
    vprintf(fmt, ap);
    printf(" (seed %llu)\n", (unsigned long long)c->seed);
    fflush(stdout);
    va_end(ap);
}

/* Whether tile data is in use: XGETBV with ECX = 1 tells which state components are not in their
 * initial configuration. Only asked on the level whose machines have it. */
static bool tiles_in_use(const struct kc *c)
{
#if defined(__x86_64__)
    if (c->k->isa == CPU_AMX) {
        uint32_t lo, hi;
        __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(1));
        return lo >> 17 & 3;
    }
#endif
    return false;
}

static unsigned fp_control(void)
{
    unsigned now = cpu_fp_begin();
    cpu_fp_restore(now);
    return now & CONTROL_BITS;
}

static void protect_inputs(const struct kc *c, int prot)
{
    for (int i = 0; i < c->n_slot; i++) {
        if (slots[i].role != KC_IN || !slots[i].n)
            continue;
        uintptr_t a = (uintptr_t)slots[i].p & ~(uintptr_t)(PAGE - 1);
        uintptr_t b = ((uintptr_t)slots[i].p + slots[i].n + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
        mprotect((void *)a, b - a, prot);
    }
}

bool kc_run(struct kc *c, void (*fn)(void *), void *arg)
{
    unsigned before = fp_control();
    protect_inputs(c, PROT_READ);
    int sig = sigsetjmp(crash_jump, 1);
    if (sig == 0) {
        running = 1;
        fn(arg);
    }
    running = 0;
    protect_inputs(c, PROT_READ | PROT_WRITE);
    if (sig) {
        cpu_fp_restore(before);
        kc_fail(c, "crashed: %s", strsignal(sig));
        return false;
    }
    if (fp_control() != before) {
        kc_fail(c, "floating-point control changed from %x to %x", before, fp_control());
        cpu_fp_restore(before);
        return false;
    }
    if (tiles_in_use(c)) {
        kc_fail(c, "tiles are still configured");
        return false;
    }
    return true;
}

/* ---- buffers --------------------------------------------------------------------------------- */

void *kc_alloc(struct kc *c, size_t n, size_t align, enum kc_role role)
{
    if (c->n_slot == KC_SLOTS || n > SLOT_BYTES) {
        fprintf(stderr, "kcheck: a case needs more than %d buffers of %zu bytes\n", KC_SLOTS,
                SLOT_BYTES);
        exit(2);
    }
    struct slot *s = &slots[c->n_slot++];
    s->p = s->base;
    if (!c->at_begin)
        s->p += (SLOT_BYTES - n) & ~(align - 1);
    s->n = n;
    s->role = role;
    if (role == KC_OUT)
        memset(s->p, POISON, n);
    return s->p;
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

bool kc_same(struct kc *c, const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bits(got[i]) != bits(want[i]) && !(isnan(got[i]) && isnan(want[i]))) {
            kc_fail(c, "%s[%zu] is %.9g (%08x), the portable kernel gives %.9g (%08x)", what, i,
                    (double)got[i], bits(got[i]), (double)want[i], bits(want[i]));
            return false;
        }
    return true;
}

bool kc_same_bytes(struct kc *c, const char *what, const void *got, const void *want, size_t n)
{
    const uint8_t *a = got, *b = want;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) {
            kc_fail(c, "%s: byte %zu is %02x, the portable kernel gives %02x", what, i, a[i], b[i]);
            return false;
        }
    return true;
}

bool kc_near(struct kc *c, const char *what, double got, double want, double bound)
{
    if (isnan(want) || isinf(want)) {
        if (isnan(got) || got == want) /* a sum that meets an infinity may end as NaN */
            return true;
        kc_fail(c, "%s is %.9g, in double it is %.9g", what, got, want);
        return false;
    }
    double err = fabs(got - want);
    if (!(err <= bound)) {
        kc_fail(c, "%s is %.9g, in double it is %.9g: off by %.3g, bound %.3g", what, got, want,
                err, bound);
        return false;
    }
    if (bound > 0 && err / bound > c->at->worst)
        c->at->worst = err / bound;
    return true;
}
