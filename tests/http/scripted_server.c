/*
 * scripted_server.c - quern-scripted: the real server over the scripted model, for black-box tests.
 * Usage: quern-scripted --tokenizer DIR [--name value ...]; prints "URL" on a line when it listens.
 * SIGTERM drains (up to --drain ms), a second one hurries.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "api/outparse.h"
#include "base/clock.h"
#include "base/log.h"
#include "scripted_lm.h"
#include "sched/gram_store.h"
#include "server/server.h"

struct args {
    const char *tokenizer, *tool_parser, *reasoning_field;
    enum api_thinking thinking;
    int n_ctx, lanes, queue, drain_ms, keepalive_ms, max_connections, idle_s, read_s, loads;
    int64_t max_body;
    const char *keys[8], *cors[8];
    int n_keys, n_cors;
};

static int usage(const char *what)
{
    fprintf(stderr, "quern-scripted: %s\n", what);
    return 2;
}

static bool read_args(int argc, char **argv, struct args *a)
{
    *a = (struct args){.n_ctx = 2048, .lanes = 4, .queue = 64, .drain_ms = 5000};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];
        if (!strcmp(k, "--tokenizer"))
            a->tokenizer = v;
        else if (!strcmp(k, "--tool-parser"))
            a->tool_parser = v;
        else if (!strcmp(k, "--reasoning-field"))
            a->reasoning_field = v;
        else if (!strcmp(k, "--thinking"))
            a->thinking = !strcmp(v, "on") ? API_THINKING_ON : API_THINKING_OFF;
        else if (!strcmp(k, "--ctx"))
            a->n_ctx = atoi(v);
        else if (!strcmp(k, "--lanes"))
            a->lanes = atoi(v);
        else if (!strcmp(k, "--queue"))
            a->queue = atoi(v);
        else if (!strcmp(k, "--drain"))
            a->drain_ms = atoi(v);
        else if (!strcmp(k, "--keepalive"))
            a->keepalive_ms = atoi(v);
        else if (!strcmp(k, "--max-connections"))
            a->max_connections = atoi(v);
        else if (!strcmp(k, "--idle"))
            a->idle_s = atoi(v);
        else if (!strcmp(k, "--read"))
            a->read_s = atoi(v);
        else if (!strcmp(k, "--load")) /* 1: the model is there after SIGUSR1, HTTP before it */
            a->loads = atoi(v);
        else if (!strcmp(k, "--max-body"))
            a->max_body = atoll(v);
        else if (!strcmp(k, "--key") && a->n_keys < 7)
            a->keys[a->n_keys++] = v;
        else if (!strcmp(k, "--cors") && a->n_cors < 7)
            a->cors[a->n_cors++] = v;
        else
            return false;
    }
    return a->tokenizer != NULL && argc % 2 == 1;
}

static void serve_until_signal(struct server *s, const sigset_t *set, int drain_ms)
{
    int sig;
    sigwait(set, &sig);
    struct timespec slice = {0, 20000000};
    int64_t until = clock_us() + (int64_t)drain_ms * 1000;
    while (!server_drain(s, 0) && clock_us() < until)
        if (sigtimedwait(set, NULL, &slice) > 0)
            server_hurry(s);
}

static void wait_loaded(void)
{
    int sig;
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigwait(&usr1, &sig);
}

static int run(const struct args *a, const sigset_t *set)
{
    static const char *const aliases[] = {"scripted-alias", NULL};
    struct qn_err err = {0};
    struct tok *tok = NULL;
    struct chat_tmpl *chat = NULL;
    struct sched *sched = NULL;
    struct server *srv = NULL;
    if (tok_open(a->tokenizer, NULL, &tok, &err) != QN_OK ||
        chat_tmpl_open(a->tokenizer, &chat, &err) != QN_OK)
        return usage(err.msg);
    struct out_syntax syntax;
    if (out_syntax_detect(&syntax, chat_tmpl_source(chat), tok, a->tool_parser, &err) != QN_OK)
        return usage(err.msg);
    int32_t n_vocab = tok_size(tok);
    struct scripted_lm *slm = scripted_lm_create(tok, n_vocab, a->n_ctx, tok_eos(tok));
    struct lm lm = scripted_lm_as(slm);
    struct sched_params sp = {.n_lane = a->lanes, .queue_max = a->queue};
    if (sched_create(&lm, tok, &sp, &sched, &err) != QN_OK)
        return usage(err.msg);
    struct api_model m = {.name = "scripted",
                          .aliases = aliases,
                          .tok = tok,
                          .chat = chat,
                          .n_ctx = a->n_ctx,
                          .n_vocab = n_vocab,
                          .defaults = sample_params_default(),
                          .syntax = &syntax,
                          .reasoning_field = a->reasoning_field,
                          .thinking = a->thinking,
                          .grams = gram_store_create(tok, n_vocab),
                          .created = clock_unix()};
    api_model_fingerprint(&m);
    struct server_params p = {.model = a->loads ? NULL : &m,
                              .sched = a->loads ? NULL : sched,
                              .api_keys = a->n_keys ? a->keys : NULL,
                              .cors = a->n_cors ? a->cors : NULL,
                              .access_log = true,
                              .max_connections = a->max_connections,
                              .max_body = (size_t)a->max_body,
                              .idle_timeout_s = a->idle_s,
                              .read_timeout_s = a->read_s,
                              .keepalive_ms = a->keepalive_ms};
    if (server_start(&p, &srv, &err) != QN_OK)
        return usage(err.msg);
    printf("%s\n", server_url(srv));
    fflush(stdout);
    if (a->loads) {
        wait_loaded();
        server_ready(srv, &m, sched);
    }
    serve_until_signal(srv, set, a->drain_ms);
    server_free(srv);
    sched_free(sched);
    gram_store_free(m.grams);
    scripted_lm_free(slm);
    chat_tmpl_free(chat);
    tok_free(tok);
    return 0;
}

int main(int argc, char **argv)
{
    struct args a;
    sigset_t set;
    if (!read_args(argc, argv, &a))
        return usage("bad arguments");
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    log_setup(STDERR_FILENO, LOG_DEBUG, false);
    return run(&a, &set);
}
